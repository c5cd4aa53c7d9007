"""The client of docs/examples that sends a picture, on the small model of this folder."""

import runpy
import sys

import pytest

from tests.conftest import ROOT
from tests.serving.server_process import ServerProcess

EXAMPLES = ROOT / "docs" / "examples"


def test_the_client_sends_a_picture(
    server: ServerProcess, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
    monkeypatch.setattr(sys, "argv", ["client.py"])
    runpy.run_path(str(EXAMPLES / "openai_chat_completion_client_for_multimodal.py"), run_name="__main__")
    assert len(capsys.readouterr().out) > len("answer: \n")
