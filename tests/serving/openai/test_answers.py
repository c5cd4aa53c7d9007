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
