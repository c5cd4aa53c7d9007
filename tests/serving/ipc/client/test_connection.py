"""Ending a connection while its engine process still starts: at once, and nothing stays behind."""

import tempfile
import threading
import time
from pathlib import Path

import psutil
import pytest

from jaxllm.config import EngineConfig
from jaxllm.errors import EngineError
from jaxllm.serving.ipc.client.connection import EngineConnection


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
