"""Kernels are compiled once per machine, and kept."""

from pathlib import Path

import pytest

from tests.conftest import RunPython

USE = """
import sys
import numpy as np
from pathlib import Path
from jaxllm.pallas_kernels.linear.cpu.form import Form
from jaxllm.pallas_kernels.linear.cpu.packed import matmul, matmul_target
from jaxllm.pallas_kernels.cpu_common.targets import begin
begin([matmul_target(Form('float32'))], Path(sys.argv[1]))()
x = np.ones((3, 32), np.float32)
assert (np.asarray(matmul(x, np.ones((1, 32, 16), np.float32))) == 32).all()
print("numba" in sys.modules)
"""


@pytest.mark.slow
def test_a_second_process_finds_what_the_first_compiled(run_python: RunPython, tmp_path: Path) -> None:
    folder = tmp_path / "not-there-yet"
    compiled_anew = [run_python("-c", USE, str(folder)).stdout.strip() for _ in range(2)]
    assert compiled_anew == ["True", "False"]
    (kept,) = folder.iterdir()
    assert kept.suffix == ".o"
    assert folder.stat().st_mode & 0o077 == 0
    kept.write_bytes(kept.read_bytes()[:-1])  # damaged: compiled anew, and kept again
    assert [run_python("-c", USE, str(folder)).stdout.strip() for _ in range(2)] == ["True", "False"]


def test_a_folder_that_cannot_be_written_is_no_failure(run_python: RunPython, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    result = run_python("-c", USE, str(file / "folder"))
    assert result.stdout.strip() == "True", result.stderr
    assert "for the next start" in result.stderr
