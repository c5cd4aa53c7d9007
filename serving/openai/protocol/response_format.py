"""The form of an output, as requests describe it."""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from jaxllm.serving.http.body.base import Body
from jaxllm.serving.http.body.bounds import NonEmpty, Text

_FORM = 'the form is {"type": "json_schema", "json_schema": {"name": ..., "schema": SCHEMA}}'


class JsonSchemaFormat(Body, kw_only=True):
    """A JSON schema and its name."""

    # The schema itself in place of its wrapper.
    elsewhere: ClassVar[Mapping[str, str]] = dict.fromkeys(
        ("type", "title", "properties", "required", "additionalProperties", "items", "enum", "$defs"), _FORM
    )

    name: NonEmpty
    """A name for the schema; without effect."""
    description: str | None = None
    """What it is for; without effect."""
    schema: dict[str, Any] | bool | None = None
    """The JSON schema that the text follows; left out, it is any JSON."""
    strict: bool | None = None
    """Accepted, without effect: the schema is always followed."""


class ResponseFormat(Body, kw_only=True):
    """OpenAI's `response_format`."""

    elsewhere: ClassVar[Mapping[str, str]] = {"schema": _FORM}

    type: Literal["text", "json_object", "json_schema", "structural_tag"]
    """Free text; any JSON object; JSON that follows a schema; text with parts that do."""
    json_schema: JsonSchemaFormat | None = None
    """The schema; only with type json_schema."""
    structures: list[dict[str, Any]] | None = None
    """With type structural_tag: objects of begin, schema and end."""
    triggers: list[str] | None = None
    """With type structural_tag: beginnings of the structures' begin, which free text may not hold."""
    format: dict[str, Any] | None = None
    """Refused: the form of structural tags with nested formats."""


class StructuredOutputsBody(Body, kw_only=True):
    """vLLM's `structured_outputs`: exactly one of the first six fields, and options."""

    json: dict[str, Any] | str | bool | None = None
    """A JSON schema, also as text."""
    regex: Text | None = None
    """A regular expression that the whole text matches."""
    choice: list[Text] | None = None
    """The text is one of these."""
    grammar: Text | None = None
    """A grammar in Lark's form, or in GBNF."""
    json_object: bool | None = None
    """The text is any JSON object."""
    structural_tag: dict[str, Any] | str | None = None
    """Free text with parts that follow a schema: structures (begin, schema, end) and triggers."""
    whitespace_pattern: Text | None = None
    """A regular expression for the whitespace between the tokens of JSON."""
    disable_any_whitespace: bool | None = None
    """No whitespace between the tokens of JSON."""
    disable_additional_properties: bool | None = None
    """Objects have only the properties that their schema names, unless it says otherwise."""
