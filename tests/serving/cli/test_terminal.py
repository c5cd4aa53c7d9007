"""Terminals show reasoning fainter than answers; scripts get answers alone."""

import io
import sys
from collections.abc import Generator
from typing import Any

import pytest

from jaxllm.serving.cli.terminal import show_answer


class Screen(io.StringIO):
    """A terminal that somebody watches."""

    def isatty(self) -> bool:
        return True


def chunks() -> Generator[dict[str, Any]]:
    for delta in ({"reasoning": "let me"}, {"reasoning": " see"}, {"content": "5"}, {"content": "."}):
        yield {"choices": [{"delta": delta}]}


def show() -> str:
    return show_answer(
        chunks(),
        lambda choice: str(choice["delta"].get("content") or ""),
        lambda choice: str(choice["delta"].get("reasoning") or ""),
    )


def test_reasoning_is_fainter_than_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    assert show() == "5."
    assert screen.getvalue() == "\x1b[2mlet me see\x1b[0m\n5.\n"


def test_scripts_get_the_answer_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert show() == "5."
    assert capsys.readouterr().out == "5.\n"
