"""All the names under which a request can ask for a form of its output."""

from typing import Any

import msgspec
import pytest

from jaxllm.errors import RequestError
from jaxllm.requests.structured_outputs import StructuredOutputsParams
from jaxllm.serving.http.body.decode import decode
from jaxllm.serving.http.body.settle import settle
from jaxllm.serving.openai.generation.parameters import structured_outputs
from jaxllm.serving.openai.protocol.completions import CompletionRequest

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def read(**fields: Any) -> StructuredOutputsParams | None:
    """The structure that a request with these fields asks for."""
    body = decode(msgspec.json.encode({"prompt": "x", **fields}), CompletionRequest)
    settle(body)
    return structured_outputs(body)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"response_format": None}, None),
        ({"response_format": {"type": "text"}}, None),
        ({"response_format": {"type": "json_object"}}, {"json_object": True}),
        (
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": SCHEMA, "strict": True},
                }
            },
            {"json": SCHEMA},
        ),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n"}}}, {"json": {}}),
        (
            {"response_format": {"type": "structural_tag", "structures": [], "triggers": []}},
            {"structural_tag": {"structures": [], "triggers": []}},
        ),
        ({"structured_outputs": {"regex": "a+"}}, {"regex": "a+"}),
        (
            {"structured_outputs": {"json": SCHEMA, "disable_any_whitespace": True}},
            {"json": SCHEMA, "disable_any_whitespace": True},
        ),
        ({"guided_json": SCHEMA, "guided_whitespace_pattern": " "}, {"json": SCHEMA, "whitespace_pattern": " "}),
        ({"guided_json": '{"type": "null"}'}, {"json": '{"type": "null"}'}),
        ({"guided_regex": "a", "guided_decoding_backend": "auto"}, {"regex": "a"}),
        ({"guided_choice": ["a", "b"]}, {"choice": ["a", "b"]}),
        ({"guided_grammar": 'start: "a"'}, {"grammar": 'start: "a"'}),
        ({"structural_tag": {"triggers": []}}, {"structural_tag": {"triggers": []}}),
    ],
)
def test_names(fields: dict[str, Any], expected: dict[str, Any] | None) -> None:
    assert read(**fields) == (None if expected is None else StructuredOutputsParams(**expected))


@pytest.mark.parametrize(
    ("fields", "parameter", "message"),
    [
        ({"response_format": {}}, "response_format.type", "required"),
        ({"response_format": {"type": "xml"}}, "response_format.type", "xml"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "required"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format.json_schema.name", "requ"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": []}}},
            "response_format.json_schema.schema",
            "expected",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": False}}},
            "response_format.json_schema.schema",
            "response_format.json_schema.schema=False",
        ),
        ({"structured_outputs": {}}, "structured_outputs", "exactly one"),
        ({"structured_outputs": {"regx": "a"}}, "structured_outputs.regx", "did you mean 'regex'"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex", "structured_outputs.regex=''"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "not valid JSON"),
        ({"guided_choice": []}, "guided_choice", "guided_choice="),
        ({"guided_regex": "a", "guided_choice": ["b"]}, "guided_choice", "guided_regex and guided_choice"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex", "only one constraint"),
        ({"guided_whitespace_pattern": " "}, "guided_whitespace_pattern", "requires guided_json"),
        ({"guided_regex": "a", "guided_decoding_backend": "outlines"}, "guided_decoding_backend", "llguidance"),
    ],
)
def test_errors_name_the_field_of_the_request(fields: dict[str, Any], parameter: str, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        read(**fields)
    assert caught.value.parameter == parameter
