"""Blocks as messages of a chat, and blocks from parts of replies."""

import json
from typing import Any

import msgspec
import pytest
from anthropic.lib.streaming._messages import accumulate_event
from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from jaxllm.errors import EngineError, RequestError
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.anthropic.convert import chat_request, read_chat
from jaxllm.serving.anthropic.requests import MessagesRequest
from jaxllm.serving.anthropic.writer import MessageWriter
from jaxllm.serving.http.body.decode import as_body, decode_body
from jaxllm.serving.http.body.ignored_fields import FieldPolicy, IgnoredFields
from jaxllm.serving.openai.chat.plan import ChatCall, ReplyPlan
from jaxllm.serving.openai.chat.prompt import conversation
from jaxllm.serving.reply.parts import ContentDelta, ReasoningDelta, ReplyPart, ToolCallArguments, ToolCallStart
from jaxllm.serving.text.input_processor import TextRequest
from jaxllm.serving.text.messages import normalise_messages
from tests.serving.openai.responses.test_writer import PARTS, Script, news

ASK = [{"role": "user", "content": "What?"}]


def body_of(**fields: Any) -> MessagesRequest:
    return as_body({"max_tokens": 9, "messages": ASK, **fields}, MessagesRequest, "")


BILLING = "x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli; cch=1f2e;"


@pytest.mark.parametrize(
    ("texts", "left"),
    [
        ([BILLING, "Be brief."], ["Be brief."]),
        ([f"{BILLING}\n\nBe brief.", "Be kind."], ["Be brief.", "Be kind."]),
        ([f"Be brief. {BILLING}", BILLING, f"\n{BILLING}"], [f"Be brief. {BILLING}", f"\n{BILLING}"]),
        (["", "Be brief."], ["", "Be brief."]),
        ([BILLING], None),
    ],
)
def test_what_claude_code_says_for_its_billing_is_no_part_of_the_prompt(
    texts: list[str], left: list[str] | None
) -> None:
    chat = read_chat(body_of(system=[{"type": "text", "text": text} for text in texts]))
    said = [message.content for message in chat.messages if message.role == "system"]
    assert msgspec.to_builtins(said) == ([] if left is None else [[{"type": "text", "text": text} for text in left]])
    assert chat.origins == ["messages[0]"] if left is None else ["system", "messages[0]"]


def test_messages() -> None:
    body = body_of(
        system=[{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        messages=[
            *ASK,
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Hm.", "signature": "x"},
                    {"type": "redacted_thinking", "data": "x"},
                    {"type": "text", "text": "I ask."},
                    {"type": "tool_use", "id": "a", "name": "f", "input": {"x": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "text", "text": "1"}]},
                    {"type": "text", "text": "So?"},
                ],
            },
            {"role": "assistant", "content": "It is"},
        ],
    )
    chat = read_chat(body)
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    assert msgspec.to_builtins(chat.messages) == [
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": "What?"},
        {
            "role": "assistant", "reasoning": "Hm.", "content": [{"type": "text", "text": "I ask."}],
            "tool_calls": [call],
        },
        {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "1"}]},
        {"role": "user", "content": [{"type": "text", "text": "So?"}]},
        {"role": "assistant", "content": "It is"},
    ]  # fmt: skip
    assert chat.origins == ["system", *(f"messages[{index}]" for index in (0, 1, 2, 2, 3))]
    assert chat_request(body, chat).continue_final_message


TOOL = {"name": "f", "input_schema": {"type": "object"}}


@pytest.mark.parametrize(
    ("choice", "expected", "parallel"),
    [
        ({"type": "auto"}, "auto", None),
        ({"type": "any", "disable_parallel_tool_use": True}, "required", False),
        ({"type": "none"}, "none", None),
        ({"type": "tool", "name": "f"}, {"type": "function", "function": {"name": "f"}}, None),
    ],
)
def test_tool_choices(choice: Any, expected: Any, parallel: bool | None) -> None:
    body = body_of(tools=[TOOL, {**TOOL, "type": "custom", "name": "g"}], tool_choice=choice)
    made = chat_request(body, read_chat(body))
    assert (made.tool_choice, made.parallel_tool_calls) == (expected, parallel)
    assert [tool.function.name for tool in made.tools or () if tool.function] == ["f", "g"]


def test_settings_of_the_answer() -> None:
    body = body_of(
        stop_sequences=["x"],
        top_k=3,
        thinking={"type": "enabled", "budget_tokens": 5},
        output_config={"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
    )
    made = chat_request(body, read_chat(body))
    assert (made.max_completion_tokens, made.stop, made.top_k, made.reasoning_effort) == (9, ["x"], 3, "low")
    assert made.thinking_token_budget == 5
    assert made.chat_template_kwargs == {"enable_thinking": True, "thinking": True}
    assert made.response_format is not None
    assert made.response_format.json_schema is not None
    assert made.response_format.json_schema.schema == {"type": "object"}


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
         "messages[0].content[0].source.type"),
        ({"messages": [{"role": "user", "content": [
            {"type": "image", "source": {"type": "base64", "media_type": "image/png"}}]}]},
         "messages[0].content[0].source.data"),
        ({"messages": [{"role": "user", "content": [{"type": "document", "source": {}}]}]},
         "messages[0].content[0].type"),
        ({"messages": [{"role": "assistant", "content": [{"type": "image", "source": {}}]}]},
         "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {}}]}]},
         "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "image"}]}]}]},
         "messages[0].content[0].content[0].source"),
        ({"messages": [{"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": [{"type": "document"}]}]}]},
         "messages[0].content[0].content[0].type"),
        ({"system": [{"type": "image"}]}, "system[0].type"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
        ({"tools": [{"name": "f"}]}, "tools[0].input_schema"),
        ({"tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tool_choice": {"type": "any", "name": "f"}}, "tool_choice.name"),
        ({"thinking": {"type": "enabled"}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "enabled", "budget_tokens": 9}}, "thinking.budget_tokens"),
        ({"thinking": {"type": "disabled", "budget_tokens": 1}}, "thinking.budget_tokens"),
    ],
)  # fmt: skip
def test_what_is_refused(fields: dict[str, Any], path: str) -> None:
    body = body_of(**fields)
    with pytest.raises(RequestError) as caught:
        chat_request(body, read_chat(body))
    assert caught.value.parameter == path


EVENT: TypeAdapter[RawMessageStreamEvent] = TypeAdapter(RawMessageStreamEvent)


def writer(parts: list[ReplyPart], *, stream: bool = True) -> MessageWriter:
    request = TextRequest(
        request_id="1", prompt="p", prompt_token_ids=[7, 8], params=SamplingParams(), children=[], stream=stream
    )
    plan = ReplyPlan(prompt="p", params=request.params, new_parser=lambda: Script(parts))
    return MessageWriter(ChatCall(request, plan), "msg_1", "demo")


def events(data: bytes) -> list[Any]:
    found = []
    for block in data.split(b"\n\n")[:-1]:
        name, line = block.split(b"\n")
        event = json.loads(line.removeprefix(b"data: "))
        assert name == b"event: " + event["type"].encode()
        if event["type"] not in ("ping", "error"):
            EVENT.validate_python(event)
        found.append(event)
    return found


def stream(made: MessageWriter, pushes: int, finish_reason: str = "stop") -> list[Any]:
    data = made.begin()
    for _ in range(pushes):
        data += made.write(0, news())
    return events(data + made.write(0, news(finish_reason)) + made.end())


def test_the_order_of_events() -> None:
    got = stream(writer(PARTS), len(PARTS))
    start, delta, stop = "content_block_start", "content_block_delta", "content_block_stop"
    assert [event["type"] for event in got] == [
        "message_start", "ping", start, delta, delta, stop, start, delta, delta, stop, start, delta, delta, stop,
        start, delta, stop, start, delta, stop, "message_delta", "message_stop",
    ]  # fmt: skip
    assert got[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}
    assert got[-2]["usage"]["input_tokens"] == got[-2]["usage"]["cache_read_input_tokens"] == 1
    assert got[0]["message"]["usage"]["input_tokens"] == 2


_json = st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=2)


@given(
    st.lists(st.tuples(st.sampled_from("rc"), st.text(min_size=1, max_size=4)) | _json, max_size=6),
    st.integers(0, 20),
)
@settings(deadline=None, max_examples=60)
def test_the_clients_accumulation_agrees(shape: list[Any], pushes: int) -> None:
    parts: list[ReplyPart] = []
    calls = 0
    for each in shape:
        if isinstance(each, dict):
            text = json.dumps(each)
            parts.append(ToolCallStart(calls, f"c{calls}", "f"))
            parts += [ToolCallArguments(calls, text[:1]), ToolCallArguments(calls, text[1:])]
            calls += 1
        else:
            parts.append(ReasoningDelta(each[1]) if each[0] == "r" else ContentDelta(each[1]))
    snapshot: Any = None
    buffers: dict[int, bytes] = {}
    for event in stream(writer(parts), pushes):
        if event["type"] != "ping":
            snapshot = accumulate_event(
                event=EVENT.validate_python(event), current_snapshot=snapshot, json_bufs=buffers
            )
    whole = writer(parts, stream=False).whole([news("stop")])
    plain = Message.model_validate_json(msgspec.json.encode(whole))
    assert [block.model_dump(exclude={"parsed_output"}) for block in snapshot.content] == [
        block.model_dump() for block in plain.content
    ]
    assert snapshot.stop_reason == plain.stop_reason == ("tool_use" if calls else "end_turn")
    assert [block.input for block in plain.content if block.type == "tool_use"] == [
        each for each in shape if isinstance(each, dict)
    ]


def test_a_call_that_is_cut_off() -> None:
    whole = writer(PARTS[:6], stream=False).whole([news("length")])
    assert whole.stop_reason == "max_tokens"
    assert msgspec.to_builtins(whole.content[-1])["input"] == {}


def test_thinking_can_be_left_out() -> None:
    body = body_of(thinking={"type": "adaptive", "display": "omitted"})
    assert chat_request(body, read_chat(body)).include_reasoning is False


def test_a_failure() -> None:
    made = writer(PARTS)
    (event,) = events(made.fail(EngineError("the engine is gone"), "r"))
    error = {"type": "api_error", "message": "the engine is gone"}
    assert event == {"type": "error", "error": error, "request_id": "r"}


@pytest.mark.parametrize("given", [None, [], [1], 3, "", '{"a": ', {"a": 1}])
def test_inputs_of_the_history_may_be_anything(given: Any) -> None:
    use = {"type": "tool_use", "id": "a", "name": "f", "input": given}
    chat = read_chat(body_of(messages=[*ASK, {"role": "assistant", "content": [use]}]))
    message = normalise_messages(conversation(chat.messages))[1]
    assert message["tool_calls"][0]["function"]["arguments"] == (given if isinstance(given, dict) else {})


def test_fields_that_only_the_template_knows() -> None:
    block = {"type": "text", "text": "Hallo", "source_lang_code": "de"}
    message = {"role": "user", "content": [block], "weight": 2}
    sent = json.dumps({"max_tokens": 9, "messages": [message]}).encode()
    body = decode_body(sent, MessagesRequest, IgnoredFields(FieldPolicy()))
    assert conversation(read_chat(body).messages) == [message]


def test_images() -> None:
    png = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    web = {"type": "image", "source": {"type": "url", "url": "https://example.com/a.png"}, "cache_control": {}}
    text = {"type": "text", "text": "a"}
    result = {"type": "tool_result", "tool_use_id": "1", "content": [text, png]}
    chat = read_chat(body_of(messages=[{"role": "user", "content": [text, web, result, png]}]))
    kinds = [
        [(part.type, part.text or part.image_url) for part in message.content]
        for message in chat.messages
        if isinstance(message.content, list)
    ]
    url, inline = ("image_url", "https://example.com/a.png"), ("image_url", "data:image/png;base64,AAAA")
    assert kinds == [[("text", "a"), url], [("text", "a"), inline], [inline]]
    assert chat.images == {
        "messages[0].content[1]": "messages[0].content[1]",
        "messages[1].content[1]": "messages[0].content[2].content[1]",
        "messages[2].content[0]": "messages[0].content[3]",
    }
