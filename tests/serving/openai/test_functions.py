"""Functions of OpenAI's first interface, with OpenAI's client, which still has them."""

import json
from typing import Any

import openai
import pytest
from openai import OpenAI

from scripts.demo_model import calls as demo_calls

ADD: dict[str, Any] = demo_calls.TOOLS["add"]["function"]
QUESTION = {"role": "user", "content": "Add 12 and 30."}
SUM: dict[str, Any] = {"model": "demo", "messages": [QUESTION], "functions": [ADD], "temperature": 0}


def test_a_call_and_the_answer_from_its_result(client: OpenAI) -> None:
    answer = client.chat.completions.create(**SUM)
    (choice,) = answer.choices
    assert (choice.finish_reason, choice.message.content) == ("function_call", None)
    assert choice.message.tool_calls is None
    call = choice.message.function_call
    assert call is not None
    assert (call.name, json.loads(call.arguments)) == ("add", {"a": 12, "b": 30})
    said = {"role": "assistant", "content": None, "function_call": call.model_dump()}
    result = {"role": "function", "name": "add", "content": '{"sum": 42}'}
    second = client.chat.completions.create(**{**SUM, "messages": [QUESTION, said, result]})
    assert (second.choices[0].message.content, second.choices[0].finish_reason) == ("12 + 30 = 42.", "stop")
    # The history may be of functions where the request has tools.
    tools: dict[str, Any] = {"model": "demo", "messages": [QUESTION, said, result], "temperature": 0}
    newer = client.chat.completions.create(**tools, tools=[demo_calls.TOOLS["add"]])  # type: ignore[list-item]
    assert newer.choices[0].message.content == "12 + 30 = 42."


def test_a_stream_is_the_same(client: OpenAI) -> None:
    deltas, reasons = [], []
    for chunk in client.chat.completions.create(**SUM, stream=True):
        (choice,) = chunk.choices
        assert choice.delta.tool_calls is None
        deltas += [] if choice.delta.function_call is None else [choice.delta.function_call]
        reasons += [choice.finish_reason] if choice.finish_reason else []
    assert deltas[0].name == "add"
    assert [delta.name for delta in deltas[1:]] == [None] * len(deltas[1:])
    assert json.loads("".join(delta.arguments or "" for delta in deltas)) == {"a": 12, "b": 30}
    assert reasons == ["function_call"]


def test_which_calls(client: OpenAI) -> None:
    silent = client.chat.completions.create(**SUM, function_call="none")
    assert silent.choices[0].message.function_call is None
    hello: dict[str, Any] = {**SUM, "messages": [{"role": "user", "content": "Hello!"}]}
    forced = client.chat.completions.create(**hello, function_call={"name": "add"}).choices[0]
    assert forced.message.function_call is not None
    assert (forced.message.function_call.name, forced.finish_reason) == ("add", "stop")


@pytest.mark.parametrize(
    ("change", "field", "says"),
    [
        ({"function_call": {"name": "ad"}}, "function_call.name", "did you mean 'add'"),
        ({"function_call": "always"}, "function_call", "must be one of"),
        ({"functions": [{"name": "a b"}]}, "functions[0].name", "letters"),
        ({"functions": [ADD, ADD]}, "functions[1].name", "another"),
        ({"tools": [{"type": "function", "function": ADD}]}, "tools", "deprecated names"),
        ({"functions": [{"name": "f", "parameters": {"type": "array"}}]}, "functions[0].parameters", "object"),
    ],
)
def test_errors_name_the_fields_of_the_request(client: OpenAI, change: dict[str, Any], field: str, says: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**{**SUM, **change})
    assert (caught.value.param, says in str(caught.value)) == (field, True), caught.value
