"""Calls that are not closed, or begin before the reasoning is: the next is read, and no markup is in any text."""

import json
import re
from typing import Any

import pytest

from jaxllm.serving.reply.catalogue import REASONING_FORMATS
from jaxllm.serving.reply.compose import make_parser
from jaxllm.serving.reply.parts import Reply, fold, read_whole
from jaxllm.serving.reply.registry import reasoning_format, tool_format
from tests.serving.reply.samples import EXPECTED, ONCE, REASONING_ONCE, SAMPLES, SCHEMAS

TAG = re.compile(r"\]<\]minimax\[>\[<[^<>]*>|<[^<>\s][^<>]*>|\[TOOL_CALLS\]|\[ARGS\]")
TAGS_OF_SEVERAL = {
    "kimi_k3": re.compile(r"<\|(open|close)\|>.*?<\|sep\|>"),
    "internlm": re.compile(r"<\|action_start\|><\|plugin\|>|<\|action_end\|>"),
}
"""Where tags are several tokens."""
UNTAGGED = {"llama3_json", "pythonic", "xlam", "openai", "phi4_mini_json"}
"""Formats whose calls begin, or end, without a tag that stands nowhere else."""


def read(name: str, text: str, reasoning: str | None = None, sizes: tuple[int, ...] = (1, 3, 11)) -> Reply:
    """The reply, which is the same in one piece and in pieces of these sizes."""

    def parser() -> Any:
        ids = iter(range(1000))
        return make_parser(
            tool_format(name),
            None if reasoning is None else reasoning_format(reasoning),
            schemas=SCHEMAS,
            new_id=lambda: f"call-{next(ids)}",
        )

    whole = read_whole(parser(), text)
    for size in sizes:
        cut = parser()
        parts = [part for place in range(0, len(text), size) for part in cut.push(text[place : place + size])]
        assert fold([*parts, *cut.finish()]) == whole
    return whole


def calls_of(reply: Reply) -> list[tuple[str, Any]]:
    return [(call.name, json.loads(call.arguments)) for call in reply.tool_calls]


@pytest.mark.parametrize("name", sorted(set(ONCE) - UNTAGGED))
def test_whatever_a_call_lacks_the_next_is_read(name: str) -> None:
    sample = SAMPLES[name]
    tag = TAGS_OF_SEVERAL.get(name, TAG)
    inside = [range(found.start() + 1, found.end()) for found in tag.finditer(sample)]
    for place in range(1, len(sample)):
        if any(place in each for each in inside):
            continue
        reply = read(name, sample[:place] + sample, sizes=(1 + place % 5,))
        assert calls_of(Reply(tool_calls=reply.tool_calls[-2:])) == EXPECTED, sample[:place]
        assert not any(TAG.search(call.arguments) for call in reply.tool_calls), sample[:place]
        if len(reply.tool_calls) > 2 and name not in ("functiongemma", "gemma4"):
            assert not TAG.search(reply.content or ""), sample[:place]


TAGGED_REASONING = [name for name in REASONING_ONCE if REASONING_FORMATS[name].path.startswith("thinking:")]


@pytest.mark.parametrize("reasoning", sorted(set(TAGGED_REASONING) - {"minimax_m2_append_think"}))
def test_a_call_before_the_end_of_the_reasoning_ends_it(reasoning: str) -> None:
    form = reasoning_format(reasoning)
    for name in sorted(set(ONCE) - {"openai", "inkling"}):
        begin = tool_format(name).begins[0]  # type: ignore[attr-defined]
        wrapped = begin + SAMPLES[name] if name in ("llama3_json", "pythonic", "xlam") else SAMPLES[name]
        reply = read(name, f"{form.start}why\n{wrapped}{form.end}", reasoning, (3,))
        assert (reply.reasoning, calls_of(reply)) == ("why", EXPECTED), name
        assert form.end not in (reply.content or ""), name
        # Words about calls are none.
        mentioned = read(name, f"{form.start}I write {begin}, so{form.end}\nYes.", reasoning, (2,))
        assert mentioned == Reply("Yes.", f"I write {begin}, so"), name


HERMES = '<tool_call>{"name": "b"}</tool_call>'
QWEN = "<tool_call><function=b></function></tool_call>"
TO = "<|channel|>commentary to=functions."


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("hermes", f'<tool_call>{{"name": "a", "arguments": {{"x": "1</tool_call>{HERMES}', '{"x": "1'),
        ("hermes", '<tool_call>{"name": "a", "arguments": {"x": 1}<tool_call>{"name": "b"}</tool_call>', '{"x": 1}'),
        ("hermes", '<tool_call>{"name": "a"</tool_call><tool_call>{"name": "b"}</tool_call>', "{}"),
        ("hermes", '<tool_call>{"name": "a"}\n{"name": "b"}</tool_call>', "{}"),
        ("mistral_v11", '[TOOL_CALLS]a[ARGS]{"x": 1[TOOL_CALLS]b[ARGS]{}', '{"x": 1'),
        ("mistral_v11", "[TOOL_CALLS]a[ARGS][TOOL_CALLS]b[ARGS]{}", "{}"),
        ("jamba", '<tool_calls>[{"name": "a", "arguments": {"x": 1}, {"name": "b"}]</tool_calls>', '{"x": 1}'),
        ("apertus", '<|tools_prefix|>[{"a": {"x": 1}, {"b": {}}]<|tools_suffix|>', '{"x": 1}'),
        ("qwen3_coder", f"<tool_call><function=a><parameter=x>\n1\n</tool_call>{QWEN}", '{"x": "1"}'),
        ("minimax_m2", '<invoke name="a"><parameter name="x">1</invoke><invoke name="b"></invoke>', '{"x": "1"}'),
        ("lfm2", "<|tool_call_start|>[a(x=1]<|tool_call_end|><|tool_call_start|>[b()]<|tool_call_end|>", '{"x": 1}'),
        ("gemma4", "<|tool_call>call:a{x:1<tool_call|><|tool_call>call:b{}<tool_call|>", '{"x": 1}'),
        ("openai", f"{TO}a<|message|> <|call|>{TO}b<|message|>{{}}", "{}"),
        ("llama3_json", '{"name": "a", "parameters": {"x": 1}; {"name": "b", "parameters": {}}', '{"x": 1}'),
    ],
)  # fmt: skip
def test_a_call_ends_where_its_end_stands(name: str, text: str, expected: str) -> None:
    reply = read(name, text)
    assert [(call.name, call.arguments) for call in reply.tool_calls] == [("a", expected), ("b", "{}")]
    assert reply.content is None


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>{"name": "a", "arguments": {"x": "</tool_call> is a tag"}}</tool_call>'),
        ("qwen3_coder", "<function=a><parameter=x>\n</tool_call> is a tag\n</parameter></function>"),
        ("minimax_m2", '<invoke name="a"><parameter name="x"></invoke> is a tag</parameter></invoke>'),
    ],
)
def test_markup_within_a_text_that_is_closed_is_text(name: str, text: str) -> None:
    (call,) = calls_of(read(name, text))
    assert call[1]["x"].endswith("> is a tag")


A, B = '{"name": "a", "parameters": {"x": 1}}', '{"name": "b", "parameters": {"y": 2}}'


@pytest.mark.parametrize(
    ("text", "content"),
    [
        *((f"{A}{mark}{B}", None) for mark in ("\n", ", ", " ", "", ";", "; ", "\n\n", "<|python_tag|>", "}", "]\n[")),
        (f"[{A}, {B}]", None),
        (f"```json\n{A}\n{B}\n```", None),
        (f"```\n[{A},\n{B}]\n```", None),
        (f"I look.\n{A}; {B}", "I look."),
        (f"I look.\n<|python_tag|>{A}; {B}\nDone.", "I look.\nDone."),
        (f"One {A} two {B} three", "One two three"),
        (f'{{"type": "function", "function": {A}}}{B}', None),
        (f"See [1] and {{x}}: {A}{B}", "See [1] and {x}:"),
    ],
)  # fmt: skip
def test_llamas_calls_are_read_wherever_they_stand(text: str, content: str | None) -> None:
    reply = read("llama3_json", text)
    assert (calls_of(reply), reply.content) == ([("a", {"x": 1}), ("b", {"y": 2})], content)
