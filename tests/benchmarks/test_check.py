"""The gate: counters of a step that do not depend on the machine, against those of the last accepted run."""

import json
from pathlib import Path

import pytest

from benchmarks import check


def test_a_step_does_no_more_than_was_accepted() -> None:
    accepted = json.loads(check.ACCEPTED.read_text())["counters"]
    engine = check.make_engine(optimization_level=0)
    first, second = check.count(engine), check.count(engine)
    engine.close()
    assert first == second, "counters vary"
    assert check.worse(accepted, first) == [], "if it has to be so: scripts/bench --check --accept"


def test_what_got_worse_is_said() -> None:
    assert check.worse({"a": 1, "b": 2, "gone": 1}, {"a": 1, "b": 3, "new": 1}) == [
        "b: 3 instead of 2",
        "new: 1, and nothing was accepted",
        "gone: not counted any more",
    ]
    assert check.worse({"ratio": 2.0}, {"ratio": 2.5}, tolerance=1.3) == []
    assert check.worse({"a": 2}, {"a": 1}) == []


def test_the_command_fails_when_something_got_worse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(check, "ACCEPTED", tmp_path / "accepted.json")
    monkeypatch.setattr(check, "counters", lambda: {"arrays": 1.0})
    assert check.main(["--counters", "--accept"]) == 0
    assert check.main(["--counters"]) == 0
    monkeypatch.setattr(check, "counters", lambda: {"arrays": 2.0})
    assert check.main(["--counters"]) == 1
    assert "worse: arrays: 2 instead of 1" in capsys.readouterr().err
