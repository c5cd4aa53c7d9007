"""Why answers end, when several of one request do so in different ways."""

from typing import Any

import pytest

from jaxllm.serving.openai.chat.answers import Answers
from jaxllm.serving.reply.compose import make_parser
from jaxllm.serving.reply.registry import tool_format
from jaxllm.serving.text.outputs import CompletionOutput

CALL = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'


def answers(**options: Any) -> Answers:
    return Answers(lambda: make_parser(tool_format("hermes"), schemas={"f": {}}), **options)


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize(
    ("texts", "reasons", "expected"),
    [
        ((CALL, "no call"), ("stop", "stop"), ["tool_calls", "stop"]),
        (("no call", CALL), ("stop", "stop"), ["stop", "tool_calls"]),
        ((CALL, CALL), ("length", "stop"), ["length", "tool_calls"]),
        ((CALL, "no call"), ("length", "length"), ["length", "length"]),
        ((CALL, CALL), ("abort", "stop"), ["abort", "tool_calls"]),
    ],
)
def test_each_answer_ends_for_its_own_reason(
    texts: tuple[str, str], reasons: tuple[str, str], expected: list[str], streamed: bool
) -> None:
    read = answers()
    found = []
    for index, (text, reason) in enumerate(zip(texts, reasons, strict=True)):
        completion = CompletionOutput(index, text, [1], finish_reason=reason)
        if streamed:
            read.deltas(completion)
        else:
            read.message(completion, "assistant")
        found.append(read.finish_reason(completion))
    assert found == expected


BEGUN = '<tool_call>\n{"name": "f", "arguments": {"a": '


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("functions", [False, True])
@pytest.mark.parametrize(
    ("texts", "stop", "expected"),
    [
        ([BEGUN], "12", "stop"),
        ([BEGUN[:-6], BEGUN[-6:]], "12", "stop"),
        ([BEGUN + '"x'], "y", "stop"),
        ([CALL, BEGUN], "12", "stop"),
        ([BEGUN], 7, "stop"),
        ([BEGUN + "1}}"], "</tool_call>", "called"),
        ([CALL + " so"], "x", "called"),
        ([BEGUN], None, "called"),
    ],
)
def test_a_stop_within_a_call_is_why_the_answer_ends(
    texts: list[str], stop: str | int | None, expected: str, functions: bool, streamed: bool
) -> None:
    read = answers(functions=functions)
    last = CompletionOutput(0, "".join(texts), [1], finish_reason="stop", stop_reason=stop)
    if streamed:
        for text in texts[:-1]:
            read.deltas(CompletionOutput(0, text, [1]))
        last = CompletionOutput(0, texts[-1], [1], finish_reason="stop", stop_reason=stop)
        read.deltas(last)
    else:
        read.message(last, "assistant")
    called = "function_call" if functions else "tool_calls"
    assert read.finish_reason(last) == (called if expected == "called" else expected)
