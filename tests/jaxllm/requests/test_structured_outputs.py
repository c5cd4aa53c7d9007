"""Requests for an output's form are checked before anything is compiled."""

from typing import Any

import msgspec
import pydantic
import pytest

from jaxllm.errors import RequestError
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.requests.structured_outputs import MAX_CHOICES, MAX_DEPTH, MAX_SOURCE, StructuredOutputsParams


def nested(levels: int) -> dict[str, Any]:
    """A schema of so many levels."""
    schema: dict[str, Any] = {}
    for _ in range(levels - 1):
        schema = {"not": schema}
    return schema


DEEP_TEXT = '{"a":' * 10_000 + "1" + "}" * 10_000

WRONG: list[tuple[dict[str, Any], str | None, str]] = [
    ({}, None, "exactly one of json, regex"),
    ({"json": {}, "regex": "a"}, None, "not json and regex"),
    ({"json_object": False}, None, "not none"),
    ({"json": False}, "json", "no value satisfies"),
    ({"json": 3}, "json", "must be a JSON object"),
    ({"json": []}, "json", "must be a JSON object"),
    ({"json": "[]"}, "json", "must be a JSON object"),
    ({"json": "{"}, "json", "not valid JSON"),
    ({"json": DEEP_TEXT}, "json", f"at most {MAX_DEPTH} levels"),
    ({"json": nested(10_000)}, "json", f"at most {MAX_DEPTH} levels"),
    ({"json": {"enum": ["x" * MAX_SOURCE]}}, "json", f"at most {MAX_SOURCE}"),
    ({"json": {"const": b"bytes"}}, "json", "cannot be written as JSON"),
    ({"json": {"const": float("nan")}}, "json", "cannot be written as JSON"),
    ({"json": {"const": "\ud800"}}, "json", "not valid Unicode"),
    ({"regex": ""}, "regex", "non-empty"),
    ({"regex": 1}, "regex", "non-empty"),
    ({"regex": "a" * (MAX_SOURCE + 1)}, "regex", f"at most {MAX_SOURCE}"),
    ({"choice": []}, "choice", "a non-empty list"),
    ({"choice": ["a", ""]}, "choice", "non-empty"),
    ({"choice": "ab"}, "choice", "a non-empty list"),
    ({"choice": ["a"] * (MAX_CHOICES + 1)}, "choice", f"at most {MAX_CHOICES}"),
    ({"grammar": ""}, "grammar", "non-empty"),
    ({"structural_tag": "no"}, "structural_tag", "not valid JSON"),
    ({"json_object": 1}, "json_object", "true or false"),
    ({"regex": "a", "disable_any_whitespace": "no"}, "disable_any_whitespace", "true or false"),
    ({"regex": "a", "whitespace_pattern": ""}, "whitespace_pattern", "non-empty"),
    (
        {"regex": "a", "whitespace_pattern": " ", "disable_any_whitespace": True},
        "whitespace_pattern",
        "cannot be combined",
    ),
    ({"jsn": {}}, "jsn", "did you mean 'json'"),
]


@pytest.mark.parametrize(("fields", "parameter", "message"), WRONG)
def test_wrong_fields(fields: dict[str, Any], parameter: str | None, message: str) -> None:
    with pytest.raises(RequestError, match=message) as caught:
        SamplingParams(structured_outputs=fields)  # type: ignore[arg-type]
    assert caught.value.parameter == parameter
    assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"json": {"type": "object"}}, "json"),
        ({"json": '{"type": "object"}'}, "json"),
        ({"json": True}, "json"),
        ({"json": nested(MAX_DEPTH)}, "json"),
        ({"regex": "[a-z]+"}, "regex"),
        ({"choice": ["yes", "no"]}, "choice"),
        ({"grammar": 'start: "a"'}, "grammar"),
        ({"json_object": True, "whitespace_pattern": " ?"}, "json_object"),
        ({"structural_tag": {"structures": [], "triggers": []}}, "structural_tag"),
    ],
)
def test_right_fields_survive_a_round_trip(fields: dict[str, Any], kind: str) -> None:
    params = SamplingParams(structured_outputs=fields, thinking_token_budget=3)  # type: ignore[arg-type]
    assert params.structured_outputs == StructuredOutputsParams(**fields)
    assert params.structured_outputs is not None
    assert params.structured_outputs.kind == kind
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(params), type=SamplingParams) == params
    assert params.uses_grammar
    assert not SamplingParams(thinking_token_budget=3).uses_grammar
    assert SamplingParams(thinking_token_budget=0, reasoning_end_token_ids=[7]).uses_grammar


def test_a_class_of_pydantic_is_a_schema() -> None:
    class Person(pydantic.BaseModel):
        name: str
        age: int

    params = SamplingParams(structured_outputs=StructuredOutputsParams(json=Person))  # type: ignore[arg-type]
    assert params.structured_outputs is not None
    assert params.structured_outputs.json == Person.model_json_schema()
    assert msgspec.json.decode(msgspec.json.encode(params), type=SamplingParams) == params
    assert SamplingParams(structured_outputs={"json": Person}) == params  # type: ignore[arg-type]
