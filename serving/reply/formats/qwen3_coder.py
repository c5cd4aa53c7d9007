"""Qwen3-Coder: tags for the function and for each parameter (chat template of Qwen3-Coder-30B-A3B-Instruct)."""

import json
import re
from collections.abc import Mapping
from typing import Any

from jaxllm.serving.reply.calls import Calls, new_call_id, tagged_calls
from jaxllm.serving.reply.lark import Lark, either
from jaxllm.serving.reply.parts import ToolCallArguments
from jaxllm.serving.reply.schemas import is_of_type, parameter_schemas, resolved, schema_types
from jaxllm.serving.reply.source import Parsing, Source

_TAG_NAME = re.compile(r"[^<>\n]*")
_VALUE_ENDS = ("</parameter>", "\n<parameter=", "</function>")


class Qwen3Coder:
    """`<tool_call>\\n<function=add>\\n<parameter=a>\\n1\\n</parameter>\\n</function>\\n</tool_call>`.

    Values are plain text; the function's schema says which of them are JSON.
    """

    markers = ("<tool_call>", "</tool_call>")
    opening, separator, closing = "", "\n", ""
    forces_reasoning = False
    new_id = staticmethod(new_call_id)

    def parse(self, source: Source, calls: Calls) -> Parsing[None]:
        """Text, and calls between tags, of which the outer ones may be missing."""
        begins = ("<tool_call>", "<function=")
        return tagged_calls(source, begins, lambda tag: _Call(source, calls).read(tag), ("</tool_call>",))

    def call(self, lark: Lark, name: str, schema: Mapping[str, Any]) -> str:
        """One call with its tags, and its parameters in the schema's order."""
        required = schema.get("required", ())
        parameters, newline = [], "\n"
        for key, inner in parameter_schemas(schema).items():
            begin = lark.text(f"<parameter={key}>\n")
            one = f"{begin} {_value(lark, inner)} {lark.text(newline)}"
            parameters.append(one if key in required else f"({one})?")
        begin, end = lark.text(f"<tool_call>\n<function={name}>\n"), lark.text("</function>\n</tool_call>")
        return " ".join([begin, *parameters, end])


def _value(lark: Lark, schema: Mapping[str, Any]) -> str:
    """The grammar of a value and the tag behind it."""
    end, schema = "\n</parameter>", resolved(schema)
    values = schema.get("enum") or ([schema["const"]] if "const" in schema else None)
    if values:
        shown = [value if isinstance(value, str) else json.dumps(value) for value in values]
        return f"{either([lark.text(value) for value in shown])} {lark.text(end)}"
    if schema_types(schema) == {"string"}:
        return lark.text_until(_VALUE_ENDS[0], without=_VALUE_ENDS[1:])
    return f"{lark.json(schema)} {lark.text(end)}"


class _Call:
    """Reads one call."""

    def __init__(self, source: Source, calls: Calls) -> None:
        self._source = source
        self._calls = calls
        self._written = "{"

    def read(self, tag: str) -> Parsing[bool]:
        """Read the call behind its first tag; False, and nothing is read: this is none."""
        source, start = self._source, self._source.at
        if tag == "<tool_call>":
            yield from source.skip()
            tag = (yield from source.match("<function=")) or ""
        name = (yield from source.run(_TAG_NAME)) if tag else ""
        if not name or not (yield from source.match(">")):
            source.at = start
            return False
        yield self._calls.start(name)
        types = {key: schema_types(each) for key, each in parameter_schemas(self._calls.schemas.get(name, {})).items()}
        yield from source.skip()
        marker = yield from source.match("<parameter=", "</function>")
        while marker == "<parameter=":
            marker = yield from self._parameter(types)
        if marker == "</function>":
            yield self._calls.arguments("{}" if self._written == "{" else "}")
        return True

    def _parameter(self, types: Mapping[str, set[str]]) -> Parsing[str | None]:
        """Read a parameter whose tag has begun; returns the tag that follows."""
        source = self._source
        key = yield from source.run(_TAG_NAME)
        if not (yield from source.match(">")):
            return None
        yield self._calls.arguments(f"{self._written}{json.dumps(key, ensure_ascii=False)}: ")
        self._written = ", "
        yield from source.match("\n")
        read = self._text() if types.get(key, {"string"}) == {"string"} else self._json(types[key])
        marker = yield from read
        if marker == "</parameter>":
            yield from source.skip()
            marker = yield from source.match("<parameter=", "</function>")
        return marker and marker.lstrip()

    def _text(self) -> Parsing[str | None]:
        """Hand on a text as it comes; the newline before the tag is none of it."""
        yield self._calls.arguments('"')
        marker, newlines = yield from self._source.until(_VALUE_ENDS, self._quoted, trim="\n")
        if marker is not None:
            yield self._quoted(newlines if marker.startswith("\n") else newlines[1:])
            yield self._calls.arguments('"')
        return marker

    def _quoted(self, text: str) -> ToolCallArguments:
        return self._calls.arguments(json.dumps(text, ensure_ascii=False)[1:-1])

    def _json(self, types: set[str]) -> Parsing[str | None]:
        """Hand on another value when it is complete; as a text, if it is nothing better."""
        source = self._source
        found = yield from source.take_until(*_VALUE_ENDS)
        if found is None:
            yield self._calls.arguments(source.text[source.at :])
            source.at = len(source.text)
            return None
        yield self._calls.arguments(_as_json(found[0].removesuffix("\n"), types))
        return found[1]


def _as_json(text: str, types: set[str]) -> str:
    """A value as JSON of one of these types; as a string, if it is none of them."""
    # Models write Python's words too.
    plain = text.strip().lower() if text.strip() in ("True", "False", "None") else text.strip()
    try:
        value = json.loads("null" if plain == "none" else plain)
    except (ValueError, RecursionError):
        return json.dumps(text, ensure_ascii=False)
    if types and "string" in types and not is_of_type(value, types):
        return json.dumps(text, ensure_ascii=False)
    return "null" if plain == "none" else plain
