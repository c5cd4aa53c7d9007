"""The example of docs/sleep_and_weights.md runs."""

import runpy
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "reinforcement_learning.py"


@pytest.mark.slow
def test_the_loop_runs_and_never_gets_worse() -> None:
    scores = runpy.run_path(str(EXAMPLE))["main"](steps=2)
    assert len(scores) == 2
    assert scores == sorted(scores)
