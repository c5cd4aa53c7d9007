"""The tests of a sweep."""

import shlex
import sys
from pathlib import Path

import pytest

from jaxllm.errors import EngineError
from jaxllm.serving.bench.sweep.options import SweepOptions
from jaxllm.serving.bench.sweep.parameters import Setting
from jaxllm.serving.bench.sweep.runs import Sweep
from jaxllm.serving.bench.sweep.server import SweepServer

BENCH = """
import sys
from pathlib import Path
folder, name = (sys.argv[sys.argv.index(flag) + 1] for flag in ("--result-dir", "--result-filename"))
(Path(folder) / name).write_text('{"a": 1}')
"""


def test_a_failed_test_leaves_no_result(tmp_path: Path) -> None:
    server = SweepServer([], "", sys.stdout, 1)

    def run(more: str) -> object:
        command = shlex.join([sys.executable, "-c", BENCH + more])
        options = SweepOptions(serve_cmd="none", bench_cmd=command, after_bench_cmd="true")
        sweep = Sweep(options, tmp_path, [Setting()], [Setting()])
        return sweep._run(server, Setting(), Setting({"b": 2}), tmp_path / "run=0.json", 0)

    with pytest.raises(EngineError, match="ended with code 3"):
        run("sys.exit(3)")
    assert not (tmp_path / "run=0.json").exists()
    wanted = {"a": 1, "run_number": 0, "b": 2}
    assert run("") == wanted
    assert run("sys.exit(3)") == wanted, "it is not run again"
    assert [file.name for file in tmp_path.iterdir()] == ["run=0.json"]


def test_some_of_the_runs_are_not_all(tmp_path: Path) -> None:
    """A summary without one that failed, or of fewer runs, does not keep them from being run."""
    command = shlex.join([sys.executable, "-c", BENCH])
    (tmp_path / "default").mkdir()

    def run(num_runs: int) -> list[int]:
        options = SweepOptions(serve_cmd="none", bench_cmd=command, after_bench_cmd="true", num_runs=num_runs)
        found = Sweep(options, tmp_path, [Setting()], [Setting()])._runs(
            SweepServer([], "", sys.stdout, 1), Setting(), Setting()
        )
        return [each["run_number"] for each in found]

    assert run(1) == [0]
    assert run(3) == [0, 1, 2]
    assert run(3) == [0, 1, 2]
