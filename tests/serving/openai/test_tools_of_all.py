"""Calls of tools through all three interfaces to chats: the same question gets the same calls."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import jsonschema
import pytest
from anthropic import Anthropic
from openai import OpenAI, pydantic_function_tool
from openai.types.responses import Response
from pydantic import BaseModel

from scripts.demo_model import calls as demo_calls
from tests.serving.openai.conftest import KEY
from tests.serving.server_process import ServerProcess

Calls = list[dict[str, Any]]

QUESTIONS = [
    ("Add 12 and 30.", ["add"]),
    ("What is the weather in Highcliff and in Fernby?", ["get_weather"]),
    ("How is the weather in Fernby?", ["buy"]),
    ("Please buy 30 carrots for me.", ["add", "buy"]),
]


@pytest.fixture(scope="module")
def claude(server: ServerProcess) -> Iterator[Anthropic]:
    with Anthropic(base_url=server.url, api_key=KEY, max_retries=0, timeout=120) as made:
        yield made


def functions(names: list[str]) -> list[dict[str, Any]]:
    return [demo_calls.TOOLS[name]["function"] for name in names]


def of_chat(names: list[str]) -> Any:
    return [{"type": "function", "function": function} for function in functions(names)]


def of_responses(names: list[str]) -> Any:
    return [{"type": "function", **function} for function in functions(names)]


def of_messages(names: list[str]) -> Any:
    renamed = {"parameters": "input_schema"}
    return [{renamed.get(key, key): value for key, value in function.items()} for function in functions(names)]


def calls_of(made: Response) -> Calls:
    return [
        {"name": item.name, "arguments": json.loads(item.arguments)}
        for item in made.output
        if item.type == "function_call"
    ]


@pytest.mark.parametrize(("question", "names"), QUESTIONS)
def test_the_same_calls(client: OpenAI, claude: Anthropic, question: str, names: list[str]) -> None:
    messages: Any = [{"role": "user", "content": question}]
    chat = client.chat.completions.create(model="demo", messages=messages, tools=of_chat(names), temperature=0)
    (choice,) = chat.choices
    expected = [
        {"name": call.function.name, "arguments": json.loads(call.function.arguments)}
        for call in choice.message.tool_calls or ()
        if call.type == "function"
    ]
    response: Response = client.responses.create(
        model="demo", input=question, tools=of_responses(names), temperature=0
    )  # fmt: skip
    assert calls_of(response) == expected
    assert response.output_text == (choice.message.content or "")
    asked: Any = {"max_tokens": 60, "messages": messages, "tools": of_messages(names), "model": "demo"}
    message = claude.messages.create(**asked, extra_body={"temperature": 0})
    assert [
        {"name": block.name, "arguments": block.input} for block in message.content if block.type == "tool_use"
    ] == expected
    assert message.stop_reason == ("tool_use" if expected else "end_turn")
    text = "".join(block.text for block in message.content if block.type == "text")
    assert text == (choice.message.content or "")
    with client.responses.stream(
        model="demo", input=question, tools=of_responses(names), temperature=0
    ) as stream:  # fmt: skip
        kinds = [event.type for event in stream]
        assert calls_of(stream.get_final_response()) == expected
    assert kinds.count("response.function_call_arguments.done") == len(expected)
    with claude.messages.stream(**asked, extra_body={"temperature": 0}) as blocks:
        final = blocks.get_final_message()
    assert [block.input for block in final.content if block.type == "tool_use"] == [
        call["arguments"] for call in expected
    ]
    counted = claude.messages.count_tokens(model="demo", messages=messages, tools=of_messages(names))
    assert response.usage is not None
    assert counted.input_tokens == response.usage.input_tokens


def test_an_answer_from_the_result(client: OpenAI, claude: Anthropic) -> None:
    question, names = QUESTIONS[0]
    first: Response = client.responses.create(model="demo", input=question, tools=of_responses(names), temperature=0)
    (call,) = first.output
    assert call.type == "function_call"
    result: Any = {"type": "function_call_output", "call_id": call.call_id, "output": '{"sum": 42}'}
    for asked in (
        {"input": [result], "previous_response_id": first.id},
        {"input": [{"role": "user", "content": question}, *first.output, result]},
    ):
        second: Any = client.responses.create(model="demo", temperature=0, tools=of_responses(names), **asked)
        assert second.output_text == "12 + 30 = 42."
    (block,) = claude.messages.create(
        model="demo", max_tokens=60, messages=[{"role": "user", "content": question}], tools=of_messages(names),
        extra_body={"temperature": 0},
    ).content  # fmt: skip
    assert block.type == "tool_use"
    answer = claude.messages.create(
        model="demo", max_tokens=60, tools=of_messages(names), extra_body={"temperature": 0}, messages=[
            {"role": "user", "content": question},
            {"role": "assistant", "content": [block]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": block.id, "content": '{"sum": 42}'}]},
        ],
    ).content  # fmt: skip
    assert answer[0].type == "text"
    assert answer[0].text == "12 + 30 = 42."


def test_a_choice_of_none(client: OpenAI, claude: Anthropic) -> None:
    question, names = QUESTIONS[0]
    response: Response = client.responses.create(
        model="demo", input=question, tools=of_responses(names), tool_choice="none", max_output_tokens=20
    )
    assert not calls_of(response)
    message = claude.messages.create(
        model="demo", max_tokens=20, messages=[{"role": "user", "content": question}], tools=of_messages(names),
        tool_choice={"type": "none"},
    )  # fmt: skip
    assert {block.type for block in message.content} <= {"text"}


@pytest.mark.parametrize("named", [False, True])
def test_forced_calls(client: OpenAI, claude: Anthropic, named: bool) -> None:
    question, names, schema = "What is the weather in Fernby?", ["buy"], functions(["buy"])[0]["parameters"]
    response: Response = client.responses.create(
        model="demo", input=question, tools=of_responses(names), temperature=0,
        tool_choice={"type": "function", "name": "buy"} if named else "required",
    )  # fmt: skip
    calls = calls_of(response)
    assert {call["name"] for call in calls} == {"buy"}
    for call in calls:
        jsonschema.validate(call["arguments"], schema)
    message = claude.messages.create(
        model="demo", max_tokens=100, messages=[{"role": "user", "content": question}], tools=of_messages(names),
        tool_choice={"type": "tool", "name": "buy"} if named else {"type": "any"}, extra_body={"temperature": 0},
    )  # fmt: skip
    assert [block.input for block in message.content if block.type == "tool_use"] == [
        call["arguments"] for call in calls
    ]
    assert message.stop_reason == "tool_use"
    once = claude.messages.create(
        model="demo", max_tokens=100, messages=[{"role": "user", "content": question}], tools=of_messages(names),
        tool_choice={"type": "any", "disable_parallel_tool_use": True},
    )  # fmt: skip
    assert len(once.content) == 1


class Sum(BaseModel):
    a: int
    b: int


def test_structured_text(client: OpenAI, claude: Anthropic) -> None:
    parsed = client.responses.parse(
        model="demo", input="Add 12 and 30.", text_format=Sum, temperature=0, max_output_tokens=60
    )
    assert isinstance(parsed.output_parsed, Sum)
    with client.responses.stream(
        model="demo", input="Add 12 and 30.", text_format=Sum, temperature=0, max_output_tokens=60
    ) as stream:
        assert stream.get_final_response().output_parsed == parsed.output_parsed
    chat = client.chat.completions.parse(
        model="demo", messages=[{"role": "user", "content": "Add 12 and 30."}], response_format=Sum, temperature=0,
        max_tokens=60,
    )  # fmt: skip
    assert chat.choices[0].message.content == parsed.output_text
    message = claude.messages.parse(
        model="demo", messages=[{"role": "user", "content": "Add 12 and 30."}], output_format=Sum, max_tokens=60,
        extra_body={"temperature": 0},
    )  # fmt: skip
    assert message.parsed_output == parsed.output_parsed
    plain = client.responses.create(
        model="demo", input="Add 12 and 30.", text={"format": {"type": "json_object"}}, temperature=0,
        max_output_tokens=100, extra_body={"stop": "}"},
    )  # fmt: skip
    assert plain.output_text.startswith("{")


def test_functions_of_pydantic_models(client: OpenAI) -> None:
    made = client.responses.parse(
        model="demo", input="Add 12 and 30.", tools=[pydantic_function_tool(Sum, name="add")], temperature=0,
        tool_choice="required", parallel_tool_calls=False,
    )  # fmt: skip
    (call,) = made.output
    assert call.type == "function_call"
    assert isinstance(call.parsed_arguments, Sum)


@pytest.mark.parametrize(
    ("schema", "place"),
    [({"type": "object", "properties": 3}, "parameters"), ({"type": "array"}, "parameters")],
)
def test_wrong_schemas(http: httpx.Client, schema: Any, place: str) -> None:
    tool = {"name": "f", "type": "function", "parameters": schema}
    error = http.post("/v1/responses", json={"input": "x", "tools": [tool]}).json()["error"]
    assert error["param"] == f"tools[0].{place}"
    assert error["message"].startswith(f"tools[0].{place}")
    body = {"max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
    answer = http.post("/v1/messages", json={**body, "tools": [{"name": "f", "input_schema": schema}]})
    assert answer.json()["error"]["message"].startswith("tools[0].input_schema")
    wrong = {"name": "x", "type": "json_schema", "schema": {"type": "nothing"}}
    error = http.post("/v1/responses", json={"input": "x", "text": {"format": wrong}}).json()["error"]
    assert error["param"] == "text.format.schema"
    chat = {**body, "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": wrong["schema"]}}}
    error = http.post("/v1/chat/completions", json=chat).json()["error"]
    assert error["param"] == "response_format.json_schema.schema"
    assert error["message"].startswith("response_format.json_schema.schema: ")
    plain = {"input": "x", "structured_outputs": {"json": {"type": "nothing"}}}
    assert http.post("/v1/responses", json=plain).json()["error"]["param"] == "structured_outputs.json"
    plain = {"prompt": "x", "guided_json": {"type": "nothing"}}
    assert http.post("/v1/completions", json=plain).json()["error"]["param"] == "guided_json"
    answer = http.post(
        "/v1/messages", json={**body, "output_config": {"format": {"type": "json_schema", "schema": {"type": "no"}}}}
    )
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("output_config.format.schema")
