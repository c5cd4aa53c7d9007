"""The tests of a sweep."""

import shlex
import socket
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


SERVER = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

class Healthy(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Healthy).serve_forever()
"""
NOTED = (
    BENCH.replace("(Path", "Path(folder).mkdir(parents=True, exist_ok=True)\n(Path", 1)
    + "print(name, file=open('done', 'a'))\n"
)


def test_every_server_is_warmed_up_and_what_succeeds_is_no_failure(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    folder, done = tmp_path / "results", tmp_path / "done"

    def run(more: str, *command: str) -> list[str]:
        done.write_text("")
        options = SweepOptions(
            serve_cmd=shlex.join([*(command or (sys.executable, "-c", SERVER)), "--port", str(port)]),
            bench_cmd=shlex.join([sys.executable, "-c", NOTED.replace("'done'", repr(str(done))) + more]),
            after_bench_cmd="true",
            num_runs=1,
            warmup_num_prompts=1,
            continue_on_error=True,
        )
        Sweep(options, folder, [Setting()], [Setting()]).run()
        return done.read_text().split()

    def failures() -> list[str]:
        return [file.name for file in folder.rglob("*.failure.json")]

    assert run("", "no-such-command") == []
    assert failures() == ["SERVE-default.failure.json"]
    assert run("sys.exit(name.startswith('run='))") == ["warmup.json.part", "run=0.json.part"]
    assert failures() == ["run=0.failure.json"]
    assert run("") == ["warmup.json.part", "run=0.json.part"]
    assert failures() == []
    assert run("") == [], "all is there: no server is needed"
