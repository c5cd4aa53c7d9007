"""One thread at a time uses libtpu, and options that a compiler does not know."""

import logging
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import jax
import pytest

from jaxllm.executor.compile.compiler import LARGE_LAYOUT, compile_lowered
from tests.conftest import RunPython


class Lowered:
    """Takes a moment to compile, and counts how many do at the same time."""

    def __init__(self) -> None:
        self.most = 0
        self._now = 0
        self._lock = threading.Lock()

    def compile(self, compiler_options: dict[str, Any]) -> None:
        with self._lock:
            self._now += 1
            self.most = max(self.most, self._now)
        time.sleep(0.05)
        with self._lock:
            self._now -= 1


@pytest.mark.parametrize(("platform", "most"), [("tpu", 1), ("cpu", 4), ("gpu", 4)])
def test_one_thread_at_a_time_compiles_for_tpus(platform: str, most: int) -> None:
    lowered = Lowered()
    with ThreadPoolExecutor(4) as pool:
        for _ in range(8):
            pool.submit(compile_lowered, lowered, platform)  # type: ignore[arg-type]
    assert lowered.most <= most
    assert (lowered.most == 1) == (platform == "tpu")


@pytest.mark.exhaustive
def test_a_process_survives_compiling_for_an_absent_tpu_on_many_threads(run_python: RunPython) -> None:
    """`scripts/bench tpu_crashes` runs more of them, also without the lock.

    In CI, `tests/serving/cli/test_tpu_compile.py` compiles a bundle on as many threads as there are cores.
    """
    pytest.importorskip("libtpu", reason="libtpu is not installed: pip install 'jax[tpu]' (no TPU needed)")
    done = run_python("-m", "benchmarks.tpu_crashes", "--processes", "1", timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr


def test_an_option_that_only_makes_programs_faster_may_be_unknown(caplog: pytest.LogCaptureFixture) -> None:
    lowered = jax.jit(lambda x: x + 1).lower(jax.ShapeDtypeStruct((2,), "float32"))
    with caplog.at_level(logging.WARNING, "jaxllm"):
        compiled = compile_lowered(lowered, "cpu", {LARGE_LAYOUT: "0", "xla_embed_ir_in_executable": False})
    assert list(compiled(jax.numpy.zeros(2))) == [1, 1]
    assert LARGE_LAYOUT in caplog.text


def test_other_unknown_options_are_errors() -> None:
    lowered = jax.jit(lambda x: x + 2).lower(jax.ShapeDtypeStruct((2,), "float32"))
    with pytest.raises(jax.errors.JaxRuntimeError, match="xla_no_such_option"):
        compile_lowered(lowered, "cpu", {"xla_no_such_option": "0"})
