"""What a request says about the form of its output, under OpenAI's names and under vLLM's older and newer ones."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from jaxllm.errors import RequestError
from jaxllm.serving.openai.protocol.generation import GenerationRequest
from jaxllm.serving.openai.protocol.response_format import ResponseFormat
from jaxllm.structured.params import KINDS, StructuredOutputsParams

_GUIDED = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "structural_tag": "structural_tag",
}
"""vLLM's names of before `structured_outputs`."""


@contextmanager
def naming_form(body: GenerationRequest) -> Iterator[None]:
    """Name the form's field, in errors raised inside that are about it, as the request does."""
    try:
        yield
    except RequestError as error:
        found, names = _given(body)
        if error.parameter not in names:
            raise
        raise _named(error, names, next(iter(found))) from None


def structured_outputs(body: GenerationRequest) -> StructuredOutputsParams | None:
    """The form that the request asks for, if any. Raises `RequestError`, also if it asks for several."""
    found, names = _given(body)
    if len(found) > 1:
        raise RequestError(f"{' and '.join(found)}: an output can have one form only; give one of them", [*found][1])
    if not found:
        if body.guided_whitespace_pattern is not None:
            raise RequestError("guided_whitespace_pattern: only with guided_json", "guided_whitespace_pattern")
        return None
    ((source, fields),) = found.items()
    if body.guided_whitespace_pattern is not None:
        fields.setdefault("whitespace_pattern", body.guided_whitespace_pattern)
    try:
        return StructuredOutputsParams.of(fields)
    except RequestError as error:
        raise _named(error, names, source) from None


def _given(body: GenerationRequest) -> tuple[dict[str, dict[str, Any]], dict[str, str]]:
    """By the fields that ask for a form, what they ask for; and what the fields of the last are called."""
    found: dict[str, dict[str, Any]] = {}
    names: dict[str, str] = {}
    if body.response_format is not None and body.response_format.type != "text":
        found["response_format"], names = _of_format(body.response_format)
    if body.structured_outputs is not None:
        given = body.structured_outputs
        found["structured_outputs"] = {
            name: value for name in given.__struct_fields__ if (value := getattr(given, name)) is not None
        }
        names = {name: f"structured_outputs.{name}" for name in given.__struct_fields__}
    for name, kind in _GUIDED.items():
        if (value := getattr(body, name)) is not None:
            found[name] = {kind: value}
            names = {kind: name, "whitespace_pattern": "guided_whitespace_pattern"}
    return found, names


def _of_format(form: ResponseFormat) -> tuple[dict[str, Any], dict[str, str]]:
    """OpenAI's `response_format` as fields of `StructuredOutputsParams`, and what these are called in it."""
    if form.type == "json_object":
        return {"json_object": True}, {}
    if form.type == "structural_tag":
        tag = {"structures": form.structures, "triggers": form.triggers, "format": form.format}
        given = {name: value for name, value in tag.items() if value is not None}
        return {"structural_tag": given}, {"structural_tag": "response_format"}
    if form.json_schema is None:
        raise RequestError("response_format.json_schema: this field is required", "response_format.json_schema")
    schema = form.json_schema.schema
    return {"json": {} if schema is None else schema}, {"json": "response_format.json_schema.schema"}


def _named(error: RequestError, names: dict[str, str], source: str) -> RequestError:
    """The error with the field's name in the request."""
    field = error.parameter
    name = source if field is None else names.get(field, field)
    message = str(error)
    if field in (*KINDS, "whitespace_pattern") and message.startswith(field):
        message = name + message[len(field) :]
    return RequestError(message, name)
