"""Ending a connection while its engine process still starts: at once, and nothing stays behind."""

import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from jaxllm.config import EngineConfig
from jaxllm.errors import EngineError
from jaxllm.serving.ipc.client import connection as connection_module
from jaxllm.serving.ipc.client.connection import EngineConnection
from jaxllm.serving.ipc.client.process import EngineProcess


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
