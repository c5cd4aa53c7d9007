"""Values between tags: what they are in JSON."""

import json
from typing import Any

from jaxllm.serving.reply.compose import make_parser
from jaxllm.serving.reply.parts import read_whole
from jaxllm.serving.reply.registry import tool_format
from tests.serving.reply.samples import marked


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
