"""Schemas keep their meaning where llguidance would have it otherwise, and its errors say what is wrong."""

from typing import Any

import pytest

from jaxllm.errors import MOST_QUOTED, RequestError
from jaxllm.requests.structured_outputs import StructuredOutputsParams
from jaxllm.structured.llguidance_backend import check, first_line
from jaxllm.structured.llguidance_source import source_of


def source(schema: Any, **options: Any) -> str:
    return source_of(StructuredOutputsParams(json=schema, **options), lambda text: False)


@pytest.mark.parametrize(
    "format", ["byte", "binary", "password", "int32", "regex", "iri", "json-pointer", "uri-template", "", "Date", "☃"]
)
def test_an_unknown_format_is_an_annotation(format: str) -> None:
    inner = {"type": "string", "pattern": "a+"}
    plain, named = (
        {"type": "object", "properties": {"v": text, "w": {"anyOf": [text, {"type": "null"}]}}}
        for text in (inner, {**inner, "format": format})
    )
    assert source(named) == source(plain)
    check(StructuredOutputsParams(json=named))
    tag = {"structures": [{"begin": "<a>", "schema": named, "end": "</a>"}], "triggers": ["<a>"]}
    check(StructuredOutputsParams(structural_tag=tag))


@pytest.mark.parametrize("format", [["date"], None, 5, {"x": 1}])
def test_a_format_that_is_no_text_says_nothing(format: Any) -> None:
    assert source({"type": "string", "format": format}) == source({"type": "string"})


@pytest.mark.parametrize("name", ["default", "enum", "const", "examples", "format"])
def test_names_of_properties_and_definitions_are_no_keywords(name: str) -> None:
    text = {"type": "string", "format": "byte"}
    for schema in (
        {"type": "object", "properties": {name: text}},
        {"$defs": {name: text}, "$ref": f"#/$defs/{name}"},
        {"definitions": {name: {"type": "array", "items": text}}, "$ref": f"#/definitions/{name}"},
    ):
        check(StructuredOutputsParams(json=schema))


def test_a_grammar_that_is_too_deep_is_an_error_of_the_request() -> None:
    chain = "root ::= r0\n" + "".join(f"r{i} ::= r{i + 1}\n" for i in range(5000)) + 'r5000 ::= "a"'
    with pytest.raises(RequestError, match="nested too deeply"):
        check(StructuredOutputsParams(grammar=chain))


def test_a_grammar_without_rules_of_gbnf_is_larks() -> None:
    check(StructuredOutputsParams(grammar='start: x\n?x: "a"\n'))


@pytest.mark.parametrize("format", ["date", "date-time", "time", "duration", "email", "ipv4", "ipv6", "uri", "uuid"])
def test_known_formats_are_followed(format: str) -> None:
    assert source({"type": "string", "format": format}) != source({"type": "string"})
    check(StructuredOutputsParams(json={"type": "string", "format": format}))


def test_values_and_properties_called_format_stay() -> None:
    for schema in (
        {"const": {"format": "byte"}},
        {"enum": [{"format": "byte"}]},
        {"type": "object", "properties": {"format": {"type": "string"}}, "required": ["format"]},
    ):
        assert "format" in source(schema)


@pytest.mark.parametrize(
    ("schema", "message"),
    [
        ({"oneOf": [{"type": "string"}, {"minLength": 2}]}, "otherwise use anyOf"),
        ({"not": {}, "type": "string"}, 'these keywords of JSON Schema are not supported: "not"'),
        ({"$ref": "http://x/y"}, "'http://x/y', which is not fetched"),
        ({"type": "string", "pattern": "b", "format": "date"}, "json: Unsatisfiable schema: Regex is empty"),
    ],
)
def test_messages_advise_what_exists_here(schema: Any, message: str) -> None:
    with pytest.raises(RequestError) as error:
        check(StructuredOutputsParams(json=schema))
    assert message in str(error.value)
    for theirs in ("coerce_one_of", "lenient", "option", "registry", "retriever", "x-guidance"):
        assert theirs not in str(error.value)


def test_messages_are_short() -> None:
    with pytest.raises(RequestError) as error:
        check(StructuredOutputsParams(json={"type": "a" * 5000}))
    assert len(str(error.value)) < MOST_QUOTED + 20
    many = "parser error: Too many items (limit 5; mask); try avoiding single-byte/short lexemes\n<non-verbose/>"
    assert first_line(many).startswith("parser error: Too many items (limit 5; mask); less ambiguous rules")
    assert "lexemes" not in first_line(many)
