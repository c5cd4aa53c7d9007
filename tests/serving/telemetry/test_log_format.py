"""Clients cannot forge a line of the log, nor command the terminal of its reader."""

import json
import logging
import sys
from typing import Any

import pytest

from jaxllm.serving.telemetry.log_format import MULTILINE, JsonFormatter, TextFormatter, escaped

FORGED = "2026-01-31 12:00:00.000 INFO jaxllm: all is well"
HOSTILE = [
    f"/v1/models\n{FORGED}",
    f"a\r{FORGED}",
    "\x1b[2J\x1b[31mred",
    "nul\x00byte",
    "\x9b31m",
    "back\x08\x08space",
    f"next\x85{FORGED}",
    f"line\u2028{FORGED}",
    f"paragraph\u2029{FORGED}",
    "right \u202e to left",
    "isolated \u2066 text",
    "half \ud800 a pair",
    "vertical\x0btab\x0cfeed",
    "deleted\x7f",
    "tag \U000e0041",
    "bell\x07",
]


def record(text: str, **extra: Any) -> logging.LogRecord:
    """A record with a client's text as an argument."""
    made = logging.LogRecord("jaxllm.test", logging.INFO, "x.py", 1, "got %s here", (text,), None)
    vars(made).update(extra)
    return made


def is_plain(line: str) -> bool:
    """Whether a line is one for every reader and every terminal."""
    return len(line.splitlines()) == 1 and all(character.isprintable() for character in line)


@pytest.mark.parametrize("text", HOSTILE)
def test_messages_are_one_visible_line(text: str) -> None:
    assert is_plain(TextFormatter().format(record(text)))
    line = JsonFormatter().format(record(text))
    assert is_plain(line)
    assert json.loads(line)["message"].startswith("got ")


@pytest.mark.parametrize("text", HOSTILE)
def test_so_are_request_ids_and_fields(text: str) -> None:
    assert is_plain(TextFormatter().format(record("it", request_id=text)))
    line = JsonFormatter().format(record("it", request_id=text, path=text, user_agent=[text]))
    assert is_plain(line)
    assert "path" in json.loads(line)


def _raised(text: str) -> Any:
    try:
        try:
            raise KeyError(text)
        except KeyError:
            raised = ValueError(text)
            raised.add_note(text)
            raise raised  # noqa: B904
    except ValueError:
        return sys.exc_info()


@pytest.mark.parametrize("text", HOSTILE)
def test_tracebacks_keep_their_lines_and_nobody_else_has_any(text: str) -> None:
    made = logging.LogRecord("jaxllm.test", logging.ERROR, "x.py", 1, "it failed", (), _raised(text))
    lines = TextFormatter().format(made).split("\n")
    assert lines.count("Traceback (most recent call last):") == 2
    assert any(line.startswith("ValueError: ") for line in lines)
    assert all(is_plain(line) for line in lines if line)
    assert not any(line.startswith(FORGED) for line in lines)


def test_a_layout_in_lines_is_asked_for() -> None:
    assert TextFormatter().format(record("a\nb", **MULTILINE)).endswith("got a\nb here")
    assert "\x1b" not in TextFormatter().format(record("a\nb\x1b", **MULTILINE))


@pytest.mark.parametrize("text", ["plain", "日本語 – é", "👩\u200d🔬", "می\u200cخواهم", r"back\slash"])
def test_other_text_stays(text: str) -> None:
    assert escaped(text) == text
