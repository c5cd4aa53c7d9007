"""Messages of the history, as clients send them back."""

from typing import Any

import pytest

from jaxllm.serving.text.messages import arguments_object, normalise_messages

BROKEN: list[Any] = [
    '{"a": ', "", " ", "null", "[1]", "3", '"s"', "words", '{"a": 1}{"b": 2}', "{'a': 1}", "\0", "[" * 100_000,
    '{"a": ' + "9" * 5000 + "}", None, [], [1], 3, 1.5, True,
]  # fmt: skip


@pytest.mark.parametrize("given", BROKEN, ids=lambda given: repr(given)[:20])
def test_arguments_that_are_no_object_count_as_none(given: Any) -> None:
    assert arguments_object(given) == {}


@pytest.mark.parametrize("given", ['{"a": 1}', {"a": 1}, ' {"a": 1}\n', '"{\\"a\\": 1}"'])
def test_arguments_are_objects(given: Any) -> None:
    assert arguments_object(given) == {"a": 1}


def test_no_half_of_a_surrogate_pair_reaches_a_prompt() -> None:
    assert arguments_object('{"a": "\\ud800", "b": "\\ud83d\\ude00"}') == {"a": "?", "b": "😀"}


@pytest.mark.parametrize("calls", [[], None, ()])
def test_an_empty_list_of_calls_is_none(calls: Any) -> None:
    sent = {"role": "assistant", "content": "Hi.", "tool_calls": calls}
    assert normalise_messages([sent]) == [{"role": "assistant", "content": "Hi."}]
    assert "tool_calls" in sent, "the caller's message was changed"


def test_calls_without_arguments_have_an_empty_object() -> None:
    sent = {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "function": {"name": "f"}}]}
    assert normalise_messages([sent])[0]["tool_calls"][0]["function"] == {"name": "f", "arguments": {}}
