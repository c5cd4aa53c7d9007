"""Values between tags: what they are in JSON."""

import json
from typing import Any

import pytest

from jaxllm.serving.reply.compose import make_parser
from jaxllm.serving.reply.parts import read_whole
from jaxllm.serving.reply.registry import tool_format
from jaxllm.serving.reply.values import as_json
from tests.serving.reply.samples import marked
from tests.serving.reply.test_json_text import strict


def test_values_in_tags_of_their_own() -> None:
    schema = {
        "properties": {
            "to": {"type": "object", "properties": {"city": {"type": "string"}, "zip": {"type": "integer"}}},
            "items": {"type": "array", "items": {"type": "object", "properties": {"n": {"type": "integer"}}}},
            "more": {"type": "object"},
        }
    }
    text = marked(
        '<invoke name="f"><to><city>Oak</city><zip>12</zip></to><items><item><n>1</n></item><item><n>2</n></item>'
        "</items><more><tag>a</tag><tag>b</tag></more></invoke>"
    )
    reply = read_whole(make_parser(tool_format("minimax_m3"), schemas={"f": schema}), text)
    assert json.loads(reply.tool_calls[0].arguments) == {
        "to": {"city": "Oak", "zip": 12},
        "items": [{"n": 1}, {"n": 2}],
        "more": {"tag": ["a", "b"]},
    }


def test_qwens_values_are_of_the_schemas_types() -> None:
    def value(schema: dict[str, Any] | None, text: str) -> Any:
        schemas = {"f": {"properties": {"x": schema} if schema is not None else {}}}
        parser = make_parser(tool_format("qwen3_coder"), schemas=schemas)
        reply = read_whole(parser, f"<function=f>\n<parameter=x>\n{text}\n</parameter>\n</function>")
        return json.loads(reply.tool_calls[0].arguments)["x"]

    assert value({"type": "string"}, "12") == "12"
    assert value({"type": "integer"}, "12") == 12
    assert value({"type": "boolean"}, "True") is True
    assert value({"type": ["string", "null"]}, "null") is None
    assert value({"type": ["string", "null"]}, "12") == "12"
    assert value({"anyOf": [{"type": "integer"}, {"type": "string"}]}, "12") == 12
    assert value({"enum": ["1", "2"]}, "1") == "1"
    assert value({"type": "object"}, '{"a": [1]}') == {"a": [1]}
    assert value({"type": "object"}, "{broken") == "{broken"
    assert value(None, "12") == "12", "not in the schema"
    assert value({}, "[1]") == [1], "anything is allowed"
    assert value({"type": "string"}, "\n\ntwo lines\n\n") == "\n\ntwo lines\n\n"


def schema_of(**types: str) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": kind} for name, kind in types.items()}}


UNCLOSED = "<arg_key>a</arg_key>\n<arg_value>x\n"


@pytest.mark.parametrize(
    ("name", "text", "schema", "expected"),
    [
        (
            "gemma4",
            "<|tool_call>call:f{a:12345,b:true,c:null,d:x<y,e:7}<tool_call|>",
            schema_of(a="string", b="string", c="string", d="string", e="integer"),
            {"a": "12345", "b": "true", "c": "null", "d": "x<y", "e": 7},
        ),
        ("gemma4", "<|tool_call>call:f{a:NaN,b:[1e400,007]}<tool_call|>", {}, {"a": "NaN", "b": [float("inf"), "007"]}),
        ("gemma4", "<|tool_call>call:f{to:{zip:12,n:1}}<tool_call|>",
         {"properties": {"to": schema_of(zip="string", n="integer")}}, {"to": {"zip": "12", "n": 1}}),
        ("dots", '<dots_function_call>{"name": "f", "arguments": {"x": 1}}</dots_function_call>', {}, {"x": 1}),
        ("qwen3_coder", '<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>', {}, {"x": 1}),
        ("qwen3_coder", '<function=f>\n{"x": NaN}\n</function>', {}, {"x": "NaN"}),
        ("glm45", '<tool_call>{"name": "f", "arguments": {"x": 1}}</tool_call>', {}, {"x": 1}),
        ("olmo3", "f(x='Oslo')", schema_of(x="string"), {"x": "Oslo"}),
        ("lfm2", "[f(x=[true, None])]", schema_of(x="array"), {"x": [True, None]}),
        ("minicpm5", '<functionname="f"><paramname="x">1</param></function>', schema_of(x="integer"), {"x": 1}),
        ("minimax_m2", '<invokename="f"><parametername="x">1</parameter></invoke>', schema_of(x="integer"), {"x": 1}),
        ("minicpm5", '<function name="f"><param name="arguments">{"x": 1}</param></function>',
         schema_of(x="integer"), {"x": 1}),
        ("minicpm5", '<function name="f"><param name="arguments">{"x": 1}</param></function>',
         schema_of(arguments="object"), {"arguments": {"x": 1}}),
        ("qwen3_coder", "<function=f>\n<parameter=input>\n{'x': 1}\n</parameter>\n</function>",
         schema_of(x="integer"), {"x": 1}),
        ("qwen3_coder", "<function=f><parameter=args>{}</parameter><parameter=x>1</parameter></function>",
         schema_of(x="integer"), {"args": {}, "x": 1}),
        ("glm45", f"<tool_call>f\n{UNCLOSED}<arg_key>b</arg_key><arg_value>y</arg_value></tool_call>",
         schema_of(a="string", b="string"), {"a": "x", "b": "y"}),
        ("minimax_m3", marked('<invoke name="f"><new><city>Oak</city><n>1</n></new></invoke>'), {},
         {"new": {"city": "Oak", "n": "1"}}),
        ("minimax_m3", marked('<invoke name="f"><a>x<b>y</b></invoke>'), schema_of(a="string", b="string"),
         {"a": "x", "b": "y"}),
        ("pythonic", "[f(a=1e400, b=007, c=-1e400)]", {}, {"a": float("inf"), "b": 7, "c": float("-inf")}),
        ("hermes", "<tool_call>{'name': 'f', 'arguments': {'x': True}}</tool_call>", {}, {"x": True}),
        ("openai", "<|channel|>commentary to=functions.f<|message|>{x: NaN,} so<|call|>", {}, {"x": "NaN"}),
    ],
)  # fmt: skip
def test_forms_that_models_write(name: str, text: str, schema: dict[str, Any], expected: dict[str, Any]) -> None:
    reply = read_whole(make_parser(tool_format(name), schemas={"f": schema}), text)
    assert reply.content is None
    assert [(call.name, strict(call.arguments)) for call in reply.tool_calls] == [("f", expected)]


@pytest.mark.parametrize(
    ("text", "types", "expected"),
    [
        ("007", {"integer"}, 7),
        ("-007.50", {"number"}, -7.5),
        ("+5", {"integer"}, 5),
        ("007", {"string", "integer"}, "007"),
        ("007", set(), "007"),
        ("NaN", {"number"}, "NaN"),
        ("[NaN, Infinity]", {"array"}, ["NaN", "Infinity"]),
        ("{'a': None}", {"object"}, {"a": None}),
        ("TRUE", {"boolean"}, True),
        ("TRUE", {"string", "boolean"}, "TRUE"),
        ('"[1]"', {"array"}, [1]),
        ('"x"', {"string", "integer"}, "x"),
        ("[" * 5000, {"array"}, "[" * 5000),
        ("9" * 5000, {"integer"}, "9" * 5000),
        ("\ud800", {"integer"}, "\ufffd"),
    ],
)
def test_values_become_json_of_the_types_that_are_allowed(text: str, types: set[str], expected: Any) -> None:
    assert strict(as_json(text, types)) == expected


def test_text_before_a_call_is_kept_to_the_last_character() -> None:
    text = '<think>why</think>\n[{"name": "f", "arguments": {"x": 1}}]'
    reply = read_whole(make_parser(tool_format("xlam"), schemas={"f": {}}), text)
    assert (reply.content, len(reply.tool_calls)) == ("<think>why</think>", 1)
