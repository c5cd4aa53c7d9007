"""Forms of calls that models write alongside those that their families are known for, and texts cut short."""

import json
from typing import Any

import pytest

from jaxllm.serving.reply.compose import make_parser
from jaxllm.serving.reply.parts import Reply, read_whole
from jaxllm.serving.reply.registry import tool_format
from tests.serving.reply.samples import ONCE, SAMPLES, SCHEMAS

CALL = ("f", {"a": "x"})
SCHEMA = {"f": {"type": "object", "properties": {"a": {"type": "string"}}}, "g": {"type": "object"}}


def read(name: str, text: str, schemas: Any = SCHEMA) -> Reply:
    return read_whole(make_parser(tool_format(name), schemas=schemas, new_id=lambda: "call-1"), text)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>\n{{"name": "f", "arguments": {"a": "x"}}}\n</tool_call>'),
        ("hermes", '<tool_call>\n{"function": "f", "arguments": {"a": "x"}}\n</tool_call>'),
        ("llama3_json", '{"type": "function", "function": "f", "parameters": {"a": "x"}}'),
        ("llama3_json", '{"name": "f", "strict": true, "parameters": {"a": "x"}}'),
        ("jamba", '<tool_calls>[{"nam": "z", "arguments": {}}, {"name": "f", "arguments": {"a": "x"}}]</tool_calls>'),
        ("qwen3_coder", '<tool_call><function="f"><parameter="a">x</parameter></function></tool_call>'),
        ("glm45", '<tool_call>f\n{"a": "x"}\n</tool_call>'),
        ("phi4_mini_json", '<|tool_call|>[{"name": "f", "arguments": {"a": "x"}}]<|/tool_call|>'),
        ("openai", '<|channel|>commentary to=f <|constrain|>json<|message|>{"a": "x"}<|call|>'),
    ],
)
def test_one_call(name: str, text: str) -> None:
    reply = read(name, text)
    assert [(call.name, json.loads(call.arguments)) for call in reply.tool_calls] == [CALL]
    assert not reply.content


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pythonic", '[f(a="x"), g(),]'),
        ("pythonic", '[f(a="x")\ng()]'),
        ("pythonic", '[f(a="x"); g()]'),
        ("olmo3", '<function_calls>[f(a="x"), g()]</function_calls>'),
    ],
)
def test_several_calls(name: str, text: str) -> None:
    reply = read(name, text)
    assert [(call.name, json.loads(call.arguments)) for call in reply.tool_calls] == [CALL, ("g", {})]
    assert not reply.content


@pytest.mark.parametrize("between", ["\n", ", ", " ", "\n\n"])
def test_a_call_of_llama_that_lacks_braces_does_not_swallow_the_next(between: str) -> None:
    text = '{"name": "f", "parameters": {"a": {"b": {"c": 1}' + between + '{"name": "g", "parameters": {"b": 2}}'
    calls = read("llama3_json", text).tool_calls
    assert [call.name for call in calls] == ["f", "g"]
    assert json.loads(calls[1].arguments) == {"b": 2}
    inner = read("llama3_json", '{"name": "f", "parameters": {"a": {"name": "g"}, "l": [{"name": "h"}]}}').tool_calls
    assert json.loads(inner[0].arguments) == {"a": {"name": "g"}, "l": [{"name": "h"}]}


@pytest.mark.parametrize("name", ONCE)
def test_no_part_of_a_tag_is_left_where_a_reply_is_cut_short(name: str) -> None:
    sample, markers = SAMPLES[name], tool_format(name).markers
    for place in range(1, len(sample)):
        reply = read(name, sample[:place], SCHEMAS)
        texts = [reply.content or "", *(call.arguments for call in reply.tool_calls)] if reply.tool_calls else []
        assert not any(marker in text for marker in markers for text in texts), sample[:place]


@pytest.mark.parametrize(
    ("name", "text", "content"),
    [
        ("internlm", "I see.<|action_start|><|plug", "I see."),
        ("kimi_k3", "I see.<|open|>too", "I see."),
        ("minimax_m3", "I see.]<]minimax[>[<tool_c", "I see."),
        ("deepseek_v32", "I see.<｜DSML｜func", "I see."),
        ("gemma4", '<|tool_call>call:f{a:<|"|>x', None),
        ("gemma4", "<|tool_call>call:f{a", None),
        ("hermes", "I see.<tool_c", "I see.<tool_c"),
    ],
)
def test_a_cut_tag_of_several_tokens_is_no_content(name: str, text: str, content: str) -> None:
    assert read(name, text).content == content


@pytest.mark.parametrize(("name", "text"), [("qwen3_coder", "<function=f>\n<param"), ("glm45", "f\n<arg_key>a</arg_")])
def test_a_call_that_is_cut_within_a_tag_leaves_no_content(name: str, text: str) -> None:
    reply = read(name, "<tool_call>" + text)
    assert [call.name for call in reply.tool_calls] == ["f"]
    assert not reply.content


def test_text_that_begins_no_call_keeps_its_space() -> None:
    assert read("glm45", '<tool_call>\n{"a": [1]}').content == '<tool_call>\n{"a": [1]}'
