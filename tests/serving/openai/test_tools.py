"""Calls of tools by the demo model, which was trained on some, through the real server."""

import asyncio
import json
from typing import Any

import httpx
import jsonschema
import openai
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletion
from pydantic import BaseModel

from scripts.demo_model import calls as demo_calls
from scripts.demo_model import held_out
from scripts.demo_model.example import Example
from tests.conftest import RunPython
from tests.serving.openai.conftest import KEY, MAX_MODEL_LEN
from tests.serving.server_process import ServerProcess

ADD, WEATHER, BUY = (demo_calls.TOOLS[name] for name in ("add", "get_weather", "buy"))
QUESTION = {"role": "user", "content": "Add 12 and 30."}
PLAIN: dict[str, Any] = {"model": "demo", "messages": [QUESTION]}
SUM: dict[str, Any] = {"model": "demo", "messages": [QUESTION], "tools": [ADD], "temperature": 0}


def calls_of(answer: ChatCompletion) -> list[dict[str, Any]]:
    (choice,) = answer.choices
    calls = choice.message.tool_calls or []
    assert all(call.type == "function" for call in calls)
    return [{"name": call.function.name, "arguments": json.loads(call.function.arguments)} for call in calls]  # type: ignore[union-attr]


def named(name: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name}}


def test_a_call(client: OpenAI) -> None:
    answer: ChatCompletion = client.chat.completions.create(**SUM)
    (choice,) = answer.choices
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert calls_of(answer) == [{"name": "add", "arguments": {"a": 12, "b": 30}}]
    assert choice.message.tool_calls is not None
    assert choice.message.tool_calls[0].id.startswith("chatcmpl-tool-")


def test_an_answer_from_the_result(client: OpenAI) -> None:
    answer: ChatCompletion = client.chat.completions.create(**SUM)
    (call,) = answer.choices[0].message.tool_calls or []
    result = {"role": "tool", "tool_call_id": call.id, "content": '{"sum": 42}'}
    messages = [QUESTION, answer.choices[0].message.model_dump(exclude_none=True), result]
    second: ChatCompletion = client.chat.completions.create(**{**SUM, "messages": messages})
    assert second.choices[0].message.content == "12 + 30 = 42."
    assert second.choices[0].message.tool_calls is None
    assert second.choices[0].finish_reason == "stop"


async def test_most_held_out_prompts_get_the_right_call(async_client: AsyncOpenAI) -> None:
    async def is_right(item: Example) -> bool:
        asked: dict[str, Any] = {"messages": item.messages, "tools": list(item.tools)}
        answer = await async_client.chat.completions.create(model="demo", temperature=0, **asked)
        return calls_of(answer) == item.expected

    items = [item for item in held_out.prompts(0, 120) if item.kind == "calls" and item.expected]
    right = sum(await asyncio.gather(*map(is_right, items)))
    assert right >= 0.9 * len(items), f"{right} of {len(items)}"


def test_a_stream_is_the_same(client: OpenAI) -> None:
    both = {**SUM, "messages": [{"role": "user", "content": "What is the weather in Highcliff and in Fernby?"}]}
    both["tools"] = [WEATHER]
    whole = calls_of(client.chat.completions.create(**both))
    with client.chat.completions.stream(**both, stream_options={"include_usage": True}) as stream:
        events = list(stream)
        final = stream.get_final_completion()
    kinds = [event.type for event in events]
    assert "tool_calls.function.arguments.delta" in kinds
    assert kinds.count("tool_calls.function.arguments.done") == len(whole) == 2
    assert "content.delta" not in kinds
    (choice,) = final.choices
    assert choice.finish_reason == "tool_calls"
    assert [json.loads(call.function.arguments) for call in choice.message.tool_calls or []] == [
        call["arguments"] for call in whole
    ]
    assert final.usage is not None
    assert final.usage.completion_tokens > 20


def test_deltas_of_a_call_are_as_openai_sends_them(client: OpenAI) -> None:
    chunks = [chunk.choices[0] for chunk in client.chat.completions.create(**SUM, stream=True)]
    deltas = [chunk.delta.model_dump(exclude_unset=True) for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": None, "refusal": None}
    (start,) = deltas[1]["tool_calls"]
    assert start == {
        "index": 0, "id": start["id"], "type": "function", "function": {"name": "add", "arguments": ""}
    }  # fmt: skip
    pieces = [delta["tool_calls"][0] for delta in deltas[2:-1]]
    assert all(piece == {"index": 0, "function": {"arguments": piece["function"]["arguments"]}} for piece in pieces)
    # How many tokens come in one depends on how fast they are taken.
    assert len(pieces) > 1
    assert json.loads("".join(piece["function"]["arguments"] for piece in pieces)) == {"a": 12, "b": 30}
    assert deltas[-1] == {}
    assert [chunk.finish_reason for chunk in chunks if chunk.finish_reason] == ["tool_calls"]


def test_what_else_a_request_may_ask_for(client: OpenAI) -> None:
    asked = {**SUM, "n": 2, "logprobs": True, "extra_body": {"return_token_ids": True}}
    answer: ChatCompletion = client.chat.completions.create(**asked)
    for choice in answer.choices:
        assert choice.message.tool_calls is not None
        assert choice.logprobs is not None
        assert len(choice.logprobs.content or ()) == len(choice.model_dump()["token_ids"])
    chunks = list(client.chat.completions.create(**asked, stream=True))
    for index, whole in enumerate(answer.choices):
        mine = [choice for chunk in chunks for choice in chunk.choices if choice.index == index]
        token_ids = [token for choice in mine for token in choice.model_dump().get("token_ids") or ()]
        logprobs = [item for choice in mine if choice.logprobs for item in choice.logprobs.content or ()]
        assert token_ids == whole.model_dump()["token_ids"]
        assert whole.logprobs is not None
        assert logprobs == whole.logprobs.content


def test_no_call_where_none_is_wanted(client: OpenAI) -> None:
    answer: ChatCompletion = client.chat.completions.create(**SUM, tool_choice="none")
    assert answer.choices[0].message.tool_calls is None
    assert answer.choices[0].finish_reason == "stop"
    refused: ChatCompletion = client.chat.completions.create(**{**SUM, "tools": [BUY]})
    assert refused.choices[0].message.tool_calls is None or calls_of(refused)[0]["name"] != "buy"


def test_stop_strings_cut_calls_too(client: OpenAI) -> None:
    answer: ChatCompletion = client.chat.completions.create(**SUM, stop=['"b"'])
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.arguments == '{"a": 12, '
    short: ChatCompletion = client.chat.completions.create(**SUM, max_tokens=3)
    assert short.choices[0].finish_reason == "length"
    assert (short.choices[0].message.content or "").startswith("<tool_call>")


@pytest.mark.parametrize("choice", ["required", named("buy")], ids=["required", "named"])
def test_forced_calls(client: OpenAI, choice: Any) -> None:
    answer: ChatCompletion = client.chat.completions.create(**{**SUM, "tools": [BUY]}, tool_choice=choice)
    (call, *_) = calls_of(answer)
    jsonschema.validate(call["arguments"], BUY["function"]["parameters"])
    assert call["name"] == "buy"
    # A named function is no choice of the model's: OpenAI and vLLM say so.
    assert answer.choices[0].finish_reason == ("tool_calls" if choice == "required" else "stop")
    assert answer.choices[0].message.content is None
    chunks = client.chat.completions.create(**{**SUM, "tools": [BUY]}, tool_choice=choice, stream=True)
    last = [chunk.choices[0].finish_reason for chunk in chunks][-1]
    assert last == answer.choices[0].finish_reason


@pytest.mark.parametrize("most", [1, 3, 8])
def test_a_forced_call_cut_short_shows_no_markup(client: OpenAI, most: int) -> None:
    for choice in ("required", named("buy")):
        asked = {**SUM, "tools": [BUY], "tool_choice": choice, "max_tokens": most}
        answer = client.chat.completions.create(**asked).choices[0]
        assert (answer.finish_reason, answer.message.content or "") == ("length", "")
        chunks = client.chat.completions.create(**asked, stream=True)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ""


def test_one_call_at_most(client: OpenAI) -> None:
    both = {**SUM, "messages": [{"role": "user", "content": "What is the weather in Highcliff and in Fernby?"}]}
    both["tools"] = [WEATHER]
    for choice in ("auto", "required"):
        answer = client.chat.completions.create(**both, parallel_tool_calls=False, tool_choice=choice)
        assert len(calls_of(answer)) == 1
        chunks = client.chat.completions.create(**both, parallel_tool_calls=False, tool_choice=choice, stream=True)
        indices = [call.index for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
        assert set(indices) == {0}


def test_strict_tools_get_valid_arguments_or_none(client: OpenAI) -> None:
    strict = {"type": "function", "function": {**BUY["function"], "strict": True}}
    for seed in range(4):
        answer: ChatCompletion = client.chat.completions.create(
            **{**SUM, "tools": [strict], "temperature": 1.5}, seed=seed, max_tokens=60
        )
        if answer.choices[0].finish_reason == "tool_calls":
            for call in calls_of(answer):
                jsonschema.validate(call["arguments"], BUY["function"]["parameters"])


def test_json_or_calls(client: OpenAI) -> None:
    schema = {"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"]}
    form: Any = {"type": "json_schema", "json_schema": {"name": "sum", "schema": schema}}
    called: ChatCompletion = client.chat.completions.create(**SUM, response_format=form)
    assert calls_of(called) == [{"name": "add", "arguments": {"a": 12, "b": 30}}]
    said: ChatCompletion = client.chat.completions.create(**{**SUM, "tools": [BUY]}, response_format=form, seed=1)
    if said.choices[0].finish_reason == "stop":
        jsonschema.validate(json.loads(said.choices[0].message.content or ""), schema)


SCHEMAS = st.recursive(
    st.sampled_from(
        [{"type": "integer"}, {"type": "boolean"}, {"enum": ["red", "blue"]}, {"type": "string", "maxLength": 5}]
    ),
    lambda inner: st.one_of(
        st.builds(lambda items: {"type": "array", "items": items, "maxItems": 2}, inner),
        st.builds(lambda a: {"type": "object", "properties": {"a": a}, "required": ["a"]}, inner),
    ),
    max_leaves=3,
)
FUNCTIONS = st.dictionaries(
    st.from_regex(r"[a-z][a-z0-9_.\-]{0,8}", fullmatch=True),
    st.dictionaries(st.sampled_from(["x", "long name", "ü\"'"]), SCHEMAS, max_size=2),
    min_size=1,
    max_size=2,
)


@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(functions=FUNCTIONS, seed=st.integers(0, 2**31), one=st.booleans())
def test_forced_calls_always_parse(http: httpx.Client, functions: dict[str, Any], seed: int, one: bool) -> None:
    schemas = {
        name: {"type": "object", "properties": properties, "required": list(properties)}
        for name, properties in functions.items()
    }
    tools = [{"type": "function", "function": {"name": name, "parameters": schemas[name]}} for name in schemas]
    choice = named(next(iter(schemas))) if one else "required"
    body = {"messages": [QUESTION], "tools": tools, "tool_choice": choice, "seed": seed, "temperature": 1}
    response = http.post("/v1/chat/completions", json=body)
    if response.status_code == 400:
        assert response.json()["error"]["code"] == "context_length_exceeded", response.text
        return
    (answer,) = response.json()["choices"]
    if answer["finish_reason"] == "length":
        assert response.json()["usage"]["total_tokens"] == MAX_MODEL_LEN
        return
    assert answer["finish_reason"] == ("stop" if one else "tool_calls")
    assert answer["message"]["content"] is None
    for call in answer["message"]["tool_calls"]:
        jsonschema.validate(json.loads(call["function"]["arguments"]), schemas[call["function"]["name"]])
    assert not one or len(answer["message"]["tool_calls"]) == 1


def _tool(**function: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", **function}}


@pytest.mark.parametrize(
    ("wrong", "param"),
    [
        ({"tools": [_tool(name="two words")]}, "tools[0].function.name"),
        ({"tools": [_tool(), _tool()]}, "tools[1].function.name"),
        ({"tools": [_tool(parameters={"type": "array"})]}, "tools[0].function.parameters"),
        ({"tools": [_tool(parameters={"properties": []})]}, "tools[0].function.parameters"),
        ({"tools": [_tool(parameters={"properties": {"a": 1}})]}, "tools[0].function.parameters"),
        ({"tools": [_tool(parameters={"required": "a"})]}, "tools[0].function.parameters"),
        ({"tools": [_tool(strict=True, parameters={"properties": {"a": {"type": "strin"}}})]}, "tools"),
        ({"tools": [_tool(parameters={"properties": {"a": {"type": "strin"}}})], "tool_choice": "required"}, "tools"),
        ({"tools": [{"type": "web_search"}], "tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [_tool()], "tool_choice": "any"}, "tool_choice"),
        ({"tools": [_tool()], "tool_choice": named("g")}, "tool_choice.function.name"),
        ({"tools": [_tool()], "tool_choice": {"type": "function"}}, "tool_choice.function.name"),
        ({"tools": [_tool()], "tool_choice": {"type": "custom"}}, "tool_choice.type"),
        ({"tools": [_tool()], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.allowed_tools.mode"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": named("f")}, "tool_choice.function.name"),
        ({"thinking_token_budget": 5}, "thinking_token_budget"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_wrong_tools_are_refused(client: OpenAI, wrong: dict[str, Any], param: str, stream: bool) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(**PLAIN, stream=stream, extra_body=wrong)
    assert caught.value.param == param, caught.value.message


def test_some_tools_are_allowed(client: OpenAI) -> None:
    allowed = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [named("add")]}}
    tools = [BUY, ADD]
    answer: ChatCompletion = client.chat.completions.create(**{**SUM, "tools": tools, "tool_choice": allowed})
    assert {call["name"] for call in calls_of(answer)} == {"add"}


class Sum(BaseModel):
    """The answer to an addition."""

    a: int
    b: int


def test_openais_helpers(client: OpenAI) -> None:
    tool = openai.pydantic_function_tool(Sum, name="add")
    answer = client.chat.completions.parse(
        model="demo", messages=PLAIN["messages"], tools=[tool], tool_choice="required", temperature=0, max_tokens=80
    )
    (call, *_) = answer.choices[0].message.tool_calls or []
    assert isinstance(call.function.parsed_arguments, Sum)
    with client.chat.completions.stream(
        model="demo", messages=PLAIN["messages"], tools=[tool], temperature=0, max_tokens=80
    ) as stream:
        done = [event for event in stream if event.type == "tool_calls.function.arguments.done"]
    assert [event.parsed_arguments for event in done] == [Sum(a=12, b=30)]


LANGCHAIN = """
import sys
from pydantic import BaseModel, Field
from langchain_openai import ChatOpenAI

class Sum(BaseModel):
    "The two numbers of an addition."
    a: int
    b: int

model = ChatOpenAI(
    model="demo", base_url=sys.argv[1], api_key=sys.argv[2], temperature=0, max_tokens=80, max_retries=0
)
for choice in ("auto", "any", "Sum"):
    bound = model.bind_tools([Sum], tool_choice=choice)
    whole = bound.invoke("Add 12 and 30.")
    assert whole.tool_calls and whole.tool_calls[0]["name"], whole
    pieces = None
    for piece in bound.stream("Add 12 and 30."):
        pieces = piece if pieces is None else pieces + piece
    same = lambda message: [(call["name"], call["args"]) for call in message.tool_calls]
    assert same(pieces) == same(whole), (pieces, whole)
for method in ("function_calling", "json_schema"):
    found = model.with_structured_output(Sum, method=method).invoke("Add 12 and 30.")
    assert isinstance(found, Sum), found
"""

INSTRUCTOR = """
import sys
import instructor
from openai import OpenAI
from pydantic import BaseModel

class Sum(BaseModel):
    a: int
    b: int

for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT):
    client = instructor.from_openai(OpenAI(base_url=sys.argv[1], api_key=sys.argv[2], max_retries=0), mode=mode)
    found = client.chat.completions.create(
        model="demo", response_model=Sum, messages=[{"role": "user", "content": "Add 12 and 30."}], temperature=0,
        max_tokens=80, max_retries=0,
    )
    assert isinstance(found, Sum), found
"""


@pytest.mark.parametrize("code", [LANGCHAIN, INSTRUCTOR], ids=["langchain", "instructor"])
def test_other_clients(server: ServerProcess, run_python: RunPython, code: str) -> None:
    done = run_python("-c", code, f"{server.url}/v1", KEY)
    assert done.returncode == 0, done.stdout + done.stderr
