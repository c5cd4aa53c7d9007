"""Events and items from parts of replies; OpenAI's own types say whether they are right."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from jaxllm.errors import EngineError
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.openai.chat.plan import ChatCall, ReplyPlan
from jaxllm.serving.openai.protocol.logprobs import ChosenLogprob
from jaxllm.serving.openai.protocol.response_answers import OutputMessage
from jaxllm.serving.openai.responses.builder import OutputBuilder
from jaxllm.serving.openai.responses.writer import ResponseWriter
from jaxllm.serving.reply.parts import (
    ContentDelta,
    ReasoningDelta,
    Reply,
    ReplyPart,
    ToolCallArguments,
    ToolCallStart,
    fold,
)
from jaxllm.serving.text.input_processor import TextRequest
from jaxllm.serving.text.outputs import CompletionOutput, RequestOutput
from tests.serving.openai.responses.test_store import response

EVENT: TypeAdapter[ResponseStreamEvent] = TypeAdapter(ResponseStreamEvent)

PARTS: list[ReplyPart] = [
    ReasoningDelta("Let me "),
    ReasoningDelta("think."),
    ContentDelta("I "),
    ContentDelta("ask."),
    ToolCallStart(0, "call_a", "get_weather"),
    ToolCallArguments(0, '{"city": '),
    ToolCallArguments(0, '"Rome"}'),
    ToolCallStart(1, "call_b", "get_time"),
    ToolCallArguments(1, "{}"),
    ContentDelta("Bye."),
]


class Script:
    """A parser that gives one part for each piece of text, and at the end the rest."""

    def __init__(self, parts: list[ReplyPart]) -> None:
        self._parts = list(parts)

    def push(self, text: str) -> list[ReplyPart]:
        return [self._parts.pop(0)] if self._parts else []

    def finish(self) -> list[ReplyPart]:
        return self._parts


def writer(parts: list[ReplyPart], *, streams: bool = True, status: str = "in_progress") -> ResponseWriter:
    begun = response("resp_1", running=True)
    begun.status = "queued" if status == "queued" else "in_progress"
    request = TextRequest(request_id="1", prompt="p", prompt_token_ids=[7, 8], params=SamplingParams(), children=[])
    plan = ReplyPlan(prompt="p", params=request.params, new_parser=lambda: Script(parts))
    call = ChatCall(request, plan)
    return ResponseWriter(begun, call, streams=streams, logprobs=None)


def news(finish_reason: str | None = None) -> RequestOutput:
    completion = CompletionOutput(0, "x", [1, 2], finish_reason=finish_reason)
    return RequestOutput("1", "p", [7, 8], [completion], finish_reason is not None, num_cached_tokens=1)


def events(data: bytes) -> list[dict[str, Any]]:
    found = []
    for block in data.split(b"\n\n")[:-1]:
        name, line = block.split(b"\n")
        event = json.loads(line.removeprefix(b"data: "))
        assert name == b"event: " + event["type"].encode()
        EVENT.validate_python(event)
        found.append(event)
    return found


def stream(made: ResponseWriter, pushes: int, finish_reason: str = "stop") -> list[dict[str, Any]]:
    data = made.begin()
    for _ in range(pushes):
        data += made.write(0, news())
    return events(data + made.write(0, news(finish_reason)) + made.end())


def of_output(answer: Any) -> Reply:
    """The reply that the items of a response make."""
    parts: list[ReplyPart] = []
    calls = 0
    for item in answer["output"]:
        match item["type"]:
            case "message":
                parts += [ContentDelta(part["text"]) for part in item["content"] if part["text"]]
            case "reasoning":
                parts += [ReasoningDelta(part["text"]) for part in item["content"]]
            case "function_call":
                parts += [
                    ToolCallStart(calls, item["call_id"], item["name"]),
                    ToolCallArguments(calls, item["arguments"]),
                ]
                calls += 1
    return fold(parts)


def test_the_order_of_events() -> None:
    got = stream(writer(PARTS), len(PARTS))
    assert [event["sequence_number"] for event in got] == list(range(len(got)))
    assert [event["type"].removeprefix("response.") for event in got] == [
        "created", "in_progress",
        "output_item.added", "content_part.added", "reasoning_text.delta", "reasoning_text.delta",
        "reasoning_text.done", "content_part.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.delta",
        "function_call_arguments.done", "output_item.done",
        "output_item.added", "function_call_arguments.delta", "function_call_arguments.done", "output_item.done",
        "output_item.added", "content_part.added", "output_text.delta",
        "output_text.done", "content_part.done", "output_item.done",
        "completed",
    ]  # fmt: skip
    assert [event["output_index"] for event in got if event["type"].endswith("item.done")] == [0, 1, 2, 3, 4]
    final = got[-1]["response"]
    assert of_output(final) == fold(PARTS)
    assert {item["status"] for item in final["output"]} == {"completed"}
    usage = final["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (2, 22, 24)
    assert usage["input_tokens_details"]["cached_tokens"] == 1


_texts = st.text(min_size=1, max_size=5)


@st.composite
def replies(draw: st.DrawFn) -> list[ReplyPart]:
    parts: list[ReplyPart] = []
    calls = 0
    for kind in draw(st.lists(st.sampled_from("rct"), max_size=6)):
        texts = draw(st.lists(_texts, min_size=1, max_size=3))
        if kind == "t":
            parts.append(ToolCallStart(calls, f"call_{calls}", f"f{calls}"))
            parts += [ToolCallArguments(calls, text) for text in texts]
            calls += 1
        else:
            parts += [ReasoningDelta(text) if kind == "r" else ContentDelta(text) for text in texts]
    return parts


@given(replies(), st.integers(0, 20), st.sampled_from(["stop", "length"]))
@settings(deadline=None, max_examples=60)
def test_the_clients_accumulation_agrees(parts: list[ReplyPart], pushes: int, finish_reason: str) -> None:
    got = stream(writer(parts), pushes, finish_reason)
    state: ResponseStreamState[None] = ResponseStreamState(input_tools=omit, text_format=omit)
    for event in got:
        state.handle_event(EVENT.validate_python(event))
    final = got[-1]["response"]
    whole = writer(parts, streams=False).whole([news(finish_reason)])
    assert of_output(final) == fold(parts)
    assert of_output(msgspec.to_builtins(whole)) == fold(parts)
    assert final["status"] == whole.status == ("completed" if finish_reason == "stop" else "incomplete")
    snapshot = state._ResponseStreamState__current_snapshot  # type: ignore[attr-defined]
    for built, item in zip(snapshot.output, final["output"], strict=True):
        if item["type"] == "message":
            assert "".join(part.text for part in built.content) == item["content"][0]["text"]
        if item["type"] == "function_call":
            assert built.arguments == item["arguments"]


def test_a_reply_that_is_cut_off() -> None:
    got = stream(writer(PARTS[:6]), 6, "length")
    assert got[-1]["type"] == "response.incomplete"
    final = Response.model_validate(got[-1]["response"])
    assert final.incomplete_details is not None
    assert final.incomplete_details.reason == "max_output_tokens"
    statuses = [item["status"] for item in got[-1]["response"]["output"]]
    assert statuses == ["completed", "completed", "incomplete"]


@pytest.mark.parametrize(("finish_reason", "types"), [("stop", ["message"]), ("length", [])])
def test_a_reply_of_nothing(finish_reason: str, types: list[str]) -> None:
    final = stream(writer([]), 0, finish_reason)[-1]["response"]
    assert [item["type"] for item in final["output"]] == types


def test_a_failure() -> None:
    made = writer(PARTS)
    data = made.begin() + made.write(0, news()) + made.fail(EngineError("the engine is gone"), "r")
    got = events(data)
    assert [event["type"] for event in got[-3:]] == ["response.output_item.done", "error", "response.failed"]
    assert got[-1]["response"]["error"]["message"] == got[-2]["message"] == "the engine is gone"


def test_in_the_background() -> None:
    made = writer(PARTS, status="queued")
    assert [event["type"] for event in events(made.begin())][1] == "response.queued"
    made.write(0, news())
    made.cancel()
    assert made.ended
    assert made.response.status == "cancelled"
    assert made.response.output[0].status == "incomplete"


@pytest.mark.parametrize("streams", [True, False])
def test_a_call_that_is_not_whole_is_incomplete(streams: bool) -> None:
    parts: list[ReplyPart] = [
        ToolCallStart(0, "call_a", "get_time"),
        ToolCallArguments(0, "{}"),
        ToolCallStart(1, "call_b", "get_weather"),
        ToolCallArguments(1, '{"city": '),
    ]
    if streams:
        output = stream(writer(parts), 2, "stop")[-1]["response"]["output"]
    else:
        output = msgspec.to_builtins(writer(parts, streams=False).whole([news("stop")]))["output"]
    assert [item["status"] for item in output] == ["completed", "incomplete"]


@given(
    pushes=st.lists(st.tuples(st.sampled_from(["", "a", "b "]), st.integers(0, 3)), max_size=8), complete=st.booleans()
)
def test_deltas_have_all_logprobs_of_a_message(pushes: list[tuple[str, int]], complete: bool) -> None:
    events: list[Any] = []
    builder = OutputBuilder(events.append)
    num_tokens = 0
    for text, tokens in pushes:
        new = [
            ChosenLogprob(token=str(num_tokens + i), logprob=-1.0, bytes=None, top_logprobs=[]) for i in range(tokens)
        ]
        builder.add([ContentDelta(text)] if text else [], new)
        num_tokens += tokens
    builder.finish(complete=complete)
    deltas = [event for event in events if event.type == "response.output_text.delta"]
    if not deltas:
        return
    found = [logprob.token for event in deltas for logprob in event.logprobs]
    assert found == [str(i) for i in range(num_tokens)]
    (message,) = builder.items
    assert isinstance(message, OutputMessage)
    assert [logprob.token for logprob in message.content[0].logprobs] == found
    assert "".join(event.delta for event in deltas) == message.content[0].text
