"""Ending a connection while its engine process still starts: at once, and nothing stays behind."""

import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

import psutil
import pytest

from jaxllm.config import EngineConfig
from jaxllm.errors import EngineError
from jaxllm.serving.ipc.client import connection as connection_module
from jaxllm.serving.ipc.client.connection import EngineConnection
from jaxllm.serving.ipc.client.process import EngineProcess
from jaxllm.serving.ipc.engine_process.clients import Sockets
from jaxllm.serving.ipc.messages import Credit, Ready, Release
from jaxllm.serving.ipc.wire import FrameEncoder, NumberedEncoder
from tests.serving.conftest import engine_info


@pytest.mark.parametrize("seconds", [0.0, 0.1, 0.6])
def test_closing_during_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ends: list[EngineError] = []
    errors: list[EngineError] = []
    connection = EngineConnection(lambda message: None, ends.append)

    def start() -> None:
        try:
            connection.start(EngineConfig())
        except EngineError as error:
            errors.append(error)

    thread = threading.Thread(target=start)
    thread.start()
    time.sleep(seconds)
    connection.close()
    thread.join(60)
    assert not thread.is_alive()
    assert len(errors) == 1
    assert not ends, "nobody was connected yet"
    assert not list(tmp_path.iterdir())
    assert not [child for child in psutil.Process().children() if "engine_process" in " ".join(child.cmdline())]


def test_a_process_that_is_stopped_as_it_starts_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it has said anything: nobody would ever hear of it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(connection_module, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(connection_module, "STOPPED_SECONDS", 0.2)
    launched: list[EngineProcess] = []

    def launch(folder: str, on_exit: Callable[[str], None]) -> EngineProcess:
        launched.append(EngineProcess(folder, on_exit))
        os.kill(launched[0].pid, signal.SIGSTOP)
        return launched[0]

    with pytest.raises(EngineError, match="stopped the engine process"):
        EngineConnection(lambda message: None, lambda error: None, launch).start(EngineConfig())
    assert not launched[0].is_stopped
    assert not psutil.pid_exists(launched[0].pid)
    assert not list(tmp_path.iterdir())


class Impostor:
    """An engine in a thread. After it is ready, all that it says is `frames`."""

    pid = 0
    is_stopped = False

    def __init__(self, folder: str, frames: list[bytes], on_exit: Callable[[str], None]) -> None:
        self._folder, self._frames, self._on_exit = folder, frames, on_exit
        self._over = threading.Event()
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        sockets = Sockets(self._folder)
        sockets.greet()
        sockets.send(Ready(engine_info()), 0)
        sockets._output.send_multipart(self._frames)
        self._over.wait(60)
        sockets.close_input()
        sockets.close_output()
        sockets.end()

    def end(self, *, at_once: bool = False) -> None:
        del at_once
        self._over.set()
        self._on_exit("ended")

    def kill(self, reason: str) -> None:
        self._on_exit(reason)

    def reach(self, folder: str) -> str:
        return folder


def third(message: Credit | Release) -> list[bytes]:
    """A message as the third of a connection is sent."""
    encoder = NumberedEncoder(FrameEncoder())
    return [[bytes(frame) for frame in encoder.encode(each)] for each in (Credit(), Credit(), message)][-1]


@pytest.mark.parametrize(
    "frames",
    [[b""], [b"foreign"], [third(Credit())[0][:-1]], third(Release([2**20]))],
    ids=["empty", "foreign", "cut", "nobody's array"],
)
def test_an_engine_that_cannot_be_understood_has_ended(frames: list[bytes]) -> None:
    """Whoever restarts it must hear of that."""
    ends: SimpleQueue[EngineError] = SimpleQueue()
    connection = EngineConnection(
        lambda message: None, ends.put, lambda folder, on_exit: Impostor(folder, frames, on_exit)
    )
    connection.start(EngineConfig())
    assert "the engine's messages" in str(ends.get(timeout=30))
    assert connection.join(30)
