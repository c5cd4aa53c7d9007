"""Processes killed, stopped and told to end, one after another: everybody is told, and nothing is left behind.

What tests/serving/server/test_server.py shows on servers without load is not repeated here.
"""

import json
import signal
import socket
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import psutil
import pytest

from tests.e2e.serving.conftest import FLAGS, left_in
from tests.e2e.serving.metrics import Metrics
from tests.e2e.serving.slow_reader import read_all, request_bytes, slow_connection
from tests.serving.server_process import LONG, Stream, running, streams
from tests.thinned import thinned

SECONDS = 120.0
"""Enough for anything on a busy machine."""


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def named_memory(*processes: psutil.Process) -> set[Path]:
    """Files of shared memory that the processes have open or mapped, and that have a name."""
    paths = {mapped.path for process in processes for mapped in process.memory_maps()}
    paths |= {file.path for process in processes for file in process.open_files()}
    return {Path(path) for path in paths if path.startswith("/dev/shm/")}


def assert_nothing_left(scratch: Path, memory: set[Path], *processes: psutil.Process) -> None:
    """The processes end soon, and with them their sockets and their shared memory."""
    _, alive = psutil.wait_procs(processes, timeout=20)
    assert not alive
    assert left_in(scratch) == []
    assert [path for path in memory if path.exists()] == []


def test_the_server_is_killed_under_load(tmp_path: Path, scratch: Path) -> None:
    with (
        running(tmp_path / "log", *FLAGS, environment={"TMPDIR": str(scratch)}) as server,
        httpx.Client(base_url=server.url, timeout=SECONDS) as client,
    ):
        engine = server.engine()
        cut = streams(*[client] * 4)
        memory = named_memory(psutil.Process(server.process.pid), engine)
        server.process.kill()
        assert server.end() == -signal.SIGKILL
        assert all(stream.rest()[-1:] != [b"[DONE]"] and stream.cut_off for stream in cut)
        assert_nothing_left(scratch, memory, engine)


@pytest.mark.slow
def test_told_to_end_while_the_engine_hangs(tmp_path: Path, scratch: Path) -> None:
    """It ends all the same, and the engine with it, though a client still owes the body of its request."""
    flags = (*FLAGS, "--shutdown-timeout", "0")
    with (
        running(tmp_path / "log", *flags, environment={"TMPDIR": str(scratch)}) as server,
        httpx.Client(base_url=server.url, timeout=SECONDS) as client,
        socket.create_connection(("127.0.0.1", server.port)) as unfinished,
    ):
        engine = server.engine()
        unfinished.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: here\r\nContent-Length: 1000\r\n\r\n{")
        stream = Stream(client, LONG)
        memory = named_memory(psutil.Process(server.process.pid), engine)
        engine.suspend()
        server.signal(signal.SIGTERM)
        assert "shutting down" in json.loads(stream.rest()[-1])["error"]["message"]
        assert server.end() == 0
        assert "Traceback" not in server.log
        assert_nothing_left(scratch, memory, engine)


@pytest.mark.slow
def test_told_to_end_while_a_client_reads_slowly(tmp_path: Path) -> None:
    """Who has not read what the engine has long generated has --shutdown-timeout seconds too."""
    # The alternatives of every token make more text than what the system keeps for slow readers.
    body = {
        "messages": [{"role": "user", "content": "Tell me a story."}], "stream": True, "max_tokens": 450, "n": 4,
        "seed": 1, "ignore_eos": True, "temperature": 1.0, "logprobs": True, "top_logprobs": 20,
    }  # fmt: skip
    with running(tmp_path / "log", *FLAGS) as server:
        with slow_connection(server.port) as connection:
            connection.sendall(request_bytes("/v1/chat/completions", body))
            until(lambda: Metrics.read(server.url)["generation_tokens_total"] >= 4 * 450)
            Metrics.wait_until_idle(server.url)
            server.signal(signal.SIGTERM)
            server.wait_for("shutting down")
            # Longer than connections get that have nothing to say.
            time.sleep(7)
            assert server.process.poll() is None
            chunks = read_all(connection)
        assert [choice.finish_reason for choice in chunks.whole()] == ["length"] * 4
        assert server.end() == 0
        assert "Traceback" not in server.log


@pytest.mark.parametrize(
    ("victim", "connected"), thinned([("server", False), ("engine", True)], [("server", True), ("engine", False)])
)
def test_killed_while_the_model_is_loading(victim: str, connected: bool, tmp_path: Path, scratch: Path) -> None:
    """Before the engine has found its sockets, and after."""
    with running(tmp_path / "log", *FLAGS, environment={"TMPDIR": str(scratch)}, wait=False) as server:
        until(lambda: bool(psutil.Process(server.process.pid).children()))
        engine = server.engine()
        if connected:
            until(lambda: bool(engine.net_connections("unix")))
        memory = named_memory(psutil.Process(server.process.pid), engine)
        (engine if victim == "engine" else server.process).kill()
        code = server.end()
        assert_nothing_left(scratch, memory, engine)
        assert "serves demo" not in server.log
        assert "Traceback" not in server.log
    if victim == "engine":
        assert code == 1
        assert [line for line in server.log.splitlines() if "SIGKILL" in line] == server.log.splitlines()[-1:]
