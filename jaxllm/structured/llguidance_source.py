"""Forms of outputs as grammars in llguidance's language."""

import json
import re
from collections.abc import Callable
from typing import Any

import llguidance
from llguidance.gbnf_to_lark import is_lark_syntax

from jaxllm.errors import RequestError, quoted, shortened
from jaxllm.requests.structured_outputs import StructuredOutputsParams
from jaxllm.structured.gbnf.lark import lark_of_gbnf

WHITESPACE = r"( |\n {0,24})"
"""Between the tokens of JSON, at most once: a space, or a line break and an indentation. Bounded, as small models
like to go on with spaces until they run out of tokens."""

_VALUES = ("const", "enum", "default", "examples")
"""Keywords whose values are no schemas."""
_BY_NAME = ("properties", "patternProperties", "dependentSchemas", "$defs", "definitions")
"""Keywords whose values have schemas under names that are no keywords."""
_FORMATS = frozenset(("date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uri", "uuid"))
"""The constraints that llguidance makes a string follow."""
_MARKED_RULE = re.compile(r"^[ \t]*[?!]\w+[ \t]*:", re.MULTILINE)
"""Begins a rule of Lark's, by which llguidance does not tell its language from GBNF."""

IsSpecial = Callable[[str], bool]
"""Whether a text is one special token."""


def source_of(form: StructuredOutputsParams, is_special: IsSpecial) -> str:
    """The grammar of `form`. Raises `RequestError` for what cannot be written as one."""
    made: str = _SOURCES[form.kind](form, is_special)
    return made


def _json_source(form: StructuredOutputsParams, is_special: IsSpecial) -> str:
    schema = form.json
    if isinstance(schema, str):
        schema = json.loads(schema)
    return _schema_source({} if schema is True else schema, form)


def _object_source(form: StructuredOutputsParams, is_special: IsSpecial) -> str:
    return _schema_source({"type": "object"}, form)


def _schema_source(schema: Any, form: StructuredOutputsParams) -> str:
    schema = _readable(schema, form)
    options: Any = {**_whitespace(form), "lenient": False}
    made: str = llguidance.LLMatcher.grammar_from_json_schema(json.dumps(schema), overrides=options)
    return made


def _whitespace(form: StructuredOutputsParams) -> dict[str, Any]:
    """The options for what stands between the tokens of JSON."""
    if form.disable_any_whitespace:
        return {"whitespace_flexible": False}
    return {"whitespace_flexible": True, "whitespace_pattern": form.whitespace_pattern or WHITESPACE}


def _readable(schema: Any, form: StructuredOutputsParams) -> Any:
    """The schema as llguidance is to read it.

    A format that it does not know says nothing, as JSON Schema has it. If so asked for, objects have no properties but
    those that are named, wherever some are named and nothing is said of others.
    """
    if isinstance(schema, list):
        return [_readable(item, form) for item in schema]
    if not isinstance(schema, dict):
        return schema
    read: dict[str, Any] = {}
    for name, value in schema.items():
        if name in _VALUES:
            read[name] = value
        elif name in _BY_NAME and isinstance(value, dict):
            read[name] = {key: _readable(inner, form) for key, inner in value.items()}
        elif name != "format" or (isinstance(value, str) and value in _FORMATS):
            read[name] = _readable(value, form)
    if form.disable_additional_properties and isinstance(read.get("properties"), dict):
        read.setdefault("additionalProperties", False)
    return read


def _regex_source(form: StructuredOutputsParams, is_special: IsSpecial) -> str:
    return _lark_of_regex(form.regex or "")


def _choice_source(form: StructuredOutputsParams, is_special: IsSpecial) -> str:
    return _lark_of_regex("|".join(map(re.escape, form.choice or ())))


def _lark_of_regex(regex: str) -> str:
    """With ASCII digits for \\d: nobody means the ten of every script in the world."""
    made: str = llguidance.LLMatcher.grammar_from_lark(f"start: /{llguidance.regex_to_lark(regex, 'd')}/")
    return made


def _grammar_source(form: StructuredOutputsParams, is_special: IsSpecial) -> str:
    assert form.grammar is not None
    if form.grammar.lstrip().startswith("{"):
        raise RequestError("grammar: must be in Lark or GBNF syntax, not JSON", "grammar")
    lark = form.grammar
    if not is_lark_syntax(lark) and not _MARKED_RULE.search(lark):
        try:
            lark = lark_of_gbnf(lark)
        except ValueError as error:
            raise RequestError(f"grammar: cannot be read as GBNF: {shortened(error)}", "grammar") from None
    made: str = llguidance.LLMatcher.grammar_from_lark(lark)
    return made


def _tag_source(form: StructuredOutputsParams, is_special: IsSpecial) -> str:
    tag = json.loads(form.structural_tag) if isinstance(form.structural_tag, str) else form.structural_tag
    structures, triggers = _tag_parts(tag)
    tags = []
    for begin, schema, end in structures:
        trigger = next((each for each in triggers if begin.startswith(each)), None)
        if trigger is None:
            raise _tag_error(f"begin {quoted(begin)} does not start with any of the triggers {quoted(triggers)}")
        tags.append(llguidance.StructTag(trigger=trigger, begin=begin, grammar=_inner(schema, form), end=end))
    special = all(is_special(each) for each in triggers if each.startswith("<") and each.endswith(">"))
    made: str = llguidance.StructTag.to_grammar(tags, assume_special=special)
    return llguidance.LLMatcher.grammar_from_lark(made)


def _inner(schema: Any, form: StructuredOutputsParams) -> dict[str, Any]:
    """A schema inside a larger grammar: options travel with it."""
    return {**_readable(schema, form), "x-guidance": _whitespace(form)}


def _tag_parts(tag: Any) -> tuple[list[tuple[str, dict[str, Any], str]], list[str]]:
    """(begin, schema, end) of each structure, and the triggers."""
    if set(tag) - {"type"} != {"structures", "triggers"}:
        found = ", ".join(sorted(set(tag) - {"type"})) or "nothing"
        raise _tag_error(f"needs the fields structures and triggers; got {shortened(found)}")
    triggers, structures = tag["triggers"], tag["structures"]
    if not isinstance(triggers, list) or not triggers or not all(isinstance(each, str) and each for each in triggers):
        raise _tag_error("triggers: must be a non-empty list of non-empty strings")
    if not isinstance(structures, list) or not structures:
        raise _tag_error("structures: must be a non-empty list of objects with begin, schema and end")
    parts = []
    for place, item in enumerate(structures):
        fits = isinstance(item, dict) and set(item) == {"begin", "schema", "end"}
        schema = item["schema"] if fits else None
        schema = {} if schema is True else schema
        if not fits or not isinstance(schema, dict) or not all(isinstance(item[key], str) for key in ("begin", "end")):
            raise _tag_error(
                f"structures[{place}]: must be an object with begin (string), schema (object) and end (string)"
            )
        parts.append((item["begin"], schema, item["end"]))
    return parts, triggers


def _tag_error(message: str) -> RequestError:
    return RequestError(f"structural_tag: {message}", "structural_tag")


_SOURCES: dict[str, Callable[[StructuredOutputsParams, IsSpecial], str]] = {
    "json": _json_source,
    "json_object": _object_source,
    "regex": _regex_source,
    "choice": _choice_source,
    "grammar": _grammar_source,
    "structural_tag": _tag_source,
}
