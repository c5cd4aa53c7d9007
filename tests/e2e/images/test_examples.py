"""The programs of docs/examples about pictures, on the small model of this folder."""

import runpy
import sys

import pytest

from jaxllm.config import EngineConfig
from tests.conftest import ROOT
from tests.e2e.images.conftest import Reference
from tests.serving.server_process import ServerProcess

EXAMPLES = ROOT / "docs" / "examples"
QUICK = {"optimization_level": 0, "enforce_eager": True, "max_model_len": 256, "max_num_batched_tokens": 8}


def test_a_drawing_is_described(
    reference: Reference, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = EngineConfig.from_options
    monkeypatch.setattr(EngineConfig, "from_options", lambda options, *more: given({**options, **QUICK}, *more))
    monkeypatch.setattr(sys, "argv", ["vision_language.py", str(reference.folder)])
    runpy.run_path(str(EXAMPLES / "vision_language.py"), run_name="__main__")
    first, second = capsys.readouterr().out.strip().splitlines()
    assert first.startswith("What is in this picture? ")
    assert second.startswith("Which shape is red? ")


def test_the_client_sends_a_picture(
    server: ServerProcess, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
    monkeypatch.setattr(sys, "argv", ["client.py"])
    runpy.run_path(str(EXAMPLES / "openai_chat_completion_client_for_multimodal.py"), run_name="__main__")
    assert len(capsys.readouterr().out) > len("answer: \n")
