"""The example of docs/sleep_and_weights.md runs."""

import runpy
from pathlib import Path

import pytest

from jaxllm.config import EngineConfig
from tests.docs.test_examples import PRINTED, QUICK

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "reinforcement_learning.py"


@pytest.mark.slow
def test_the_loop_runs_and_never_gets_worse(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = EngineConfig.from_options
    monkeypatch.setattr(EngineConfig, "from_options", lambda options, *more: given({**QUICK, **options}, *more))
    scores = runpy.run_path(str(EXAMPLE))["main"](steps=2)
    assert len(scores) == 2
    assert scores == sorted(scores)
    assert PRINTED[EXAMPLE.name] in capsys.readouterr().out
