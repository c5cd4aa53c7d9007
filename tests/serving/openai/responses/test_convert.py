"""Items as messages of a chat."""

import json
from typing import Any

import msgspec
import pytest
from openai.types.responses import ResponseItem
from pydantic import TypeAdapter

from jaxllm.errors import RequestError
from jaxllm.serving.http.body.decode import as_body, decode_body
from jaxllm.serving.http.body.ignored_fields import FieldPolicy, IgnoredFields
from jaxllm.serving.http.renaming import renaming
from jaxllm.serving.openai.chat.prompt import conversation
from jaxllm.serving.openai.protocol.response_items import ITEM_KINDS, FunctionCallInput, MessageItem
from jaxllm.serving.openai.protocol.responses import ResponsesRequest
from jaxllm.serving.openai.responses.convert import FIELDS, ItemMessages, chat_request
from jaxllm.serving.openai.responses.items import from_output, listed, read_input
from jaxllm.serving.openai.responses.prepare import read_turn
from jaxllm.serving.openai.responses.store import ResponseStore
from jaxllm.serving.text.messages import normalise_messages
from tests.serving.openai.responses.test_writer import PARTS, news, writer


def chat_of(items: list[dict[str, Any]]) -> ItemMessages:
    body = ResponsesRequest(input=items)
    chat = ItemMessages()
    for index, item in enumerate(read_turn(body, read_input(items), ResponseStore(1, 1000), "").given):
        chat.add(item, f"input[{index}]")
    return chat


def plain(chat: ItemMessages) -> Any:
    return msgspec.to_builtins(chat.messages)


CALL = {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"}
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}


def test_what_the_assistant_did_in_a_row_is_one_message() -> None:
    chat = chat_of(
        [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": [{"type": "input_text", "text": "What"}, {"type": "input_text", "text": "?"}]},
            REASONING,
            {"role": "assistant", "content": [{"type": "output_text", "text": "I ask.", "annotations": []}]},
            CALL,
            {**CALL, "call_id": "b"},
            {"type": "function_call_output", "call_id": "a", "output": "1"},
            {"type": "function_call_output", "call_id": "b", "output": [{"type": "input_text", "text": "2"}]},
            CALL,
            {"role": "assistant", "content": "And?"},
            {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]},
        ]
    )
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert plain(chat) == [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "What"}, {"type": "text", "text": "?"}]},
        {
            "role": "assistant", "reasoning": "Hm.", "content": [{"type": "text", "text": "I ask."}],
            "tool_calls": [call, {**call, "id": "b"}],
        },
        {"role": "tool", "tool_call_id": "a", "content": "1"},
        {"role": "tool", "tool_call_id": "b", "content": [{"type": "text", "text": "2"}]},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "assistant", "content": "And?"},
        {"role": "assistant", "content": [{"type": "text", "text": "No."}]},
    ]  # fmt: skip
    assert chat.origins == [f"input[{index}]" for index in (0, 1, 2, 6, 7, 8, 9, 10)]


def test_summaries_stand_for_reasoning() -> None:
    item = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "In short."}]}
    assert plain(chat_of([item, {"role": "assistant", "content": "x"}]))[0]["reasoning"] == "In short."


def test_a_new_thought_is_a_new_message() -> None:
    assert len(plain(chat_of([REASONING, REASONING, CALL, REASONING]))) == 3


@pytest.mark.parametrize(
    ("item", "path"),
    [
        ({"role": "user", "content": [{"type": "output_text", "text": "x"}]}, "input[0].content[0].type"),
        ({"role": "user", "content": [{"type": "input_text"}]}, "input[0].content[0].text"),
        ({"role": "user", "content": [{"type": "input_image", "file_id": "x"}]}, "input[0].content[0].file_id"),
        ({"role": "user", "content": [{"type": "input_image"}]}, "input[0].content[0].image_url"),
        ({"role": "system", "content": [{"type": "input_image"}]}, "input[0].content[0].type"),
        ({"role": "judge", "content": "x"}, "input[0].role"),
        ({"role": "user"}, "input[0].content"),
        ({"type": "function_call", "name": "f", "arguments": "{}"}, "input[0].call_id"),
        ({"type": "function_call_output", "call_id": "x", "output": [{"type": "z"}]}, "input[0].output[0].type"),
        ({"type": "web_search_call", "id": "x"}, "input[0].type"),
        ({"type": "reasoning", "summary": [], "encrypted_content": "x"}, "input[0].encrypted_content"),
        ({"type": 3}, "input[0].type"),
        ({"id": "msg_unknown"}, "input[0].id"),
    ],
)
def test_wrong_items(item: dict[str, Any], path: str) -> None:
    with pytest.raises(RequestError) as caught:
        chat_of([item])
    assert caught.value.parameter == path
    assert str(caught.value).startswith(path) or path in str(caught.value)


def test_output_is_input_of_what_follows() -> None:
    made = writer(PARTS, streams=False).whole([news("stop")])
    items = [from_output(item) for item in made.output]
    for item in items:
        # What is listed as input is what OpenAI's client knows.
        TypeAdapter[object](ResponseItem).validate_python(listed(item))
    sent: list[Any] = msgspec.to_builtins(made.output)
    for each in (items, [as_body(item, ITEM_KINDS[item["type"]], "x") for item in sent]):
        check_reply(each)


def check_reply(items: list[Any]) -> None:
    """The items are the reply of `PARTS`."""
    chat = ItemMessages()
    for item in items:
        chat.add(item, "x")
    first, second = plain(chat)
    assert (first["reasoning"], first["content"][0]["text"]) == ("Let me think.", "I ask.")
    assert [call["function"]["arguments"] for call in first["tool_calls"]] == ['{"city": "Rome"}', "{}"]
    assert second["content"][0]["text"] == "Bye."


@pytest.mark.parametrize(
    "item",
    [
        {"role": "user", "content": "x"},
        {"role": "assistant", "content": "x"},
        {"role": "system", "content": [{"type": "input_text", "text": "x"}]},
        {"role": "assistant", "content": [{"type": "output_text", "text": "x"}]},
        {"type": "function_call", "call_id": "a", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": "1"},
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "x"}]},
    ],
)
def test_items_are_listed_as_the_client_knows_them(item: dict[str, Any]) -> None:
    (given,) = read_turn(ResponsesRequest(input=[item]), read_input([item]), ResponseStore(1, 1000), "").given
    TypeAdapter[object](ResponseItem).validate_python(listed(given))


TOOL = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}


F = {"type": "function", "function": {"name": "f"}}


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (None, None),
        ("required", "required"),
        ({"type": "function", "name": "f"}, F),
        (
            {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "f"}]},
            {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [F]}},
        ),
    ],
)
def test_tools(choice: Any, expected: Any) -> None:
    body = ResponsesRequest(input="x", tools=[TOOL, {"type": "function", "name": "g"}], tool_choice=choice)
    made = chat_request(body, ItemMessages())
    assert made.tool_choice == expected
    assert [tool.function.name for tool in made.tools or () if tool.function] == ["f", "g"]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"tools": [{"type": "web_search", "user_location": {}}]}, "tools[0].type"),
        ({"tools": [{"name": "f"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [{**TOOL, "nam": 1}]}, "tools[0].nam"),
        ({"tool_choice": {"type": "function"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "mcp"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice.tools"),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function"}]}},
            "tool_choice.tools[0].name",
        ),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema"),
    ],
)
def test_wrong_fields(fields: dict[str, Any], path: str) -> None:
    body = as_body({"input": "x", **fields}, ResponsesRequest, "")
    with pytest.raises(RequestError) as caught:
        chat_request(body, ItemMessages())
    assert caught.value.parameter == path


def test_formats() -> None:
    schema = {"type": "json_schema", "name": "x", "schema": {"type": "object"}, "strict": True}
    for given, expected in (
        (None, None),
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"type": "json_object"}),
        (schema, {"type": "json_schema", "json_schema": {key: schema[key] for key in ("name", "schema", "strict")}}),
    ):
        body = as_body({"input": "x", "text": {"format": given}}, ResponsesRequest, "")
        assert msgspec.to_builtins(chat_request(body, ItemMessages()).response_format) == expected


@pytest.mark.parametrize(
    ("message", "parameter", "renamed", "names"),
    [
        ("messages[1].content: wrong", "messages[1].content", "input[4]: wrong", "input[4]"),
        ("messages[0]: arguments are not JSON", "messages", "instructions: arguments are not JSON", "input"),
        ("messages: the list is empty", "messages", "input: the list is empty", "input"),
        ("the chat template rejects these messages: x", "messages", None, "input"),
        ("response_format.json_schema.schema: bad", "response_format.json_schema.schema",
         "text.format.schema: bad", "text.format.schema"),
        ("tools[0].function.name: bad", "tools[0].function.name", "tools[0].name: bad", "tools[0].name"),
        ("tool_choice.allowed_tools.tools[1].function.name='x': no", "tool_choice.allowed_tools.tools[1].function.name",
         "tool_choice.tools[1].name='x': no", "tool_choice.tools[1].name"),
        ("temperature=-1: must be", "temperature", None, "temperature"),
    ],
)  # fmt: skip
def test_errors_are_told_in_the_fields_of_the_interface(
    message: str, parameter: str, renamed: str | None, names: str
) -> None:
    with pytest.raises(RequestError) as caught, renaming(FIELDS, ["instructions", "input[4]"]):
        raise RequestError(message, parameter)
    assert (str(caught.value), caught.value.parameter) == (renamed or message, names)


@pytest.mark.parametrize(
    ("status", "behind", "goes_on"),
    [
        ("in_progress", [], True),
        ("incomplete", [], True),
        ("completed", [], None),
        (None, [], None),
        ("in_progress", [{"role": "user", "content": "Well?"}], None),
    ],
)
def test_a_message_that_is_not_complete_is_gone_on_with(status: str | None, behind: Any, goes_on: bool | None) -> None:
    said: dict[str, Any] = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "It"}]}
    items = [{"role": "user", "content": "What?"}, said if status is None else {**said, "status": status}, *behind]
    chat = chat_of(items)
    request = chat_request(ResponsesRequest(input=items), chat)
    assert request.continue_final_message is goes_on


@pytest.mark.parametrize("arguments", ['{"a": ', "", "null", None, [], 3, {"a": 1}])
def test_arguments_of_the_history_may_be_anything(arguments: Any) -> None:
    chat = chat_of([{**CALL, "arguments": arguments}])
    (message,) = normalise_messages(conversation(chat.messages))
    assert message["tool_calls"][0]["function"]["arguments"] == (arguments if isinstance(arguments, dict) else {})
    (item,) = read_input([{**CALL, "arguments": arguments}])
    assert isinstance(item, FunctionCallInput)
    assert isinstance(listed(item)["arguments"], str)


def test_fields_that_only_the_template_knows() -> None:
    part = {"type": "input_text", "text": "Hallo", "source_lang_code": "de"}
    items = [{"role": "user", "content": [part], "weight": 2}]
    body = decode_body(json.dumps({"input": items}).encode(), ResponsesRequest, IgnoredFields(FieldPolicy()))
    assert isinstance(body.input, list)
    chat = chat_of(body.input)
    assert conversation(chat.messages) == [{"role": "user", "content": [{**part, "type": "text"}], "weight": 2}]
    (item,) = read_input(body.input)
    assert isinstance(item, MessageItem)
    assert listed(item) == {**items[0], "type": "message", "status": "completed"}
