"""MiniMax-M3: a tag for each parameter and whatever is in it, with a mark before every tag (its chat template)."""

import json
import re
from collections.abc import Mapping
from typing import Any

from jaxllm.serving.reply.calls import Calls, new_call_id, tagged_calls
from jaxllm.serving.reply.lark import Lark, either
from jaxllm.serving.reply.parts import ToolCallArguments
from jaxllm.serving.reply.schemas import parameter_schemas, resolved, schema_types
from jaxllm.serving.reply.source import Parsing, Source
from jaxllm.serving.reply.values import as_json

_MARK = "]<]minimax[>["
_ALL, _NO_ALL = f"{_MARK}<tool_call>", f"{_MARK}</tool_call>"
_HEAD, _TAIL = f"{_MARK}<invoke name=", f"{_MARK}</invoke>"
_NAME = re.compile(r"[^<>\n]*")
_DEEPEST = 64
"""Levels of tags that are read."""


class MiniMaxM3:
    """`<invoke name="add"><a>1</a></invoke>` with the mark before each tag, all between `<tool_call>` tags.

    Lists are `<item>` tags, or one tag several times.
    """

    # Others' tags are tokens of some tokenizers, and then no text can be them.
    markers = (_MARK, "<tool_call>", "</tool_call>", "</invoke>")
    opening, separator, closing = f"{_ALL}\n", "\n", f"\n{_NO_ALL}"
    forces_reasoning = False
    new_id = staticmethod(new_call_id)

    def parse(self, source: Source, calls: Calls) -> Parsing[None]:
        """Text, and calls between tags, of which the outer ones may be missing."""
        return tagged_calls(source, (_ALL, _HEAD), lambda tag: _Call(source, calls).read(tag))

    def call(self, lark: Lark, name: str, schema: Mapping[str, Any]) -> str:
        """One call; its parameters are texts and JSON."""
        required = schema.get("required", ())
        parts = [lark.text(f'{_HEAD}"{name}">')]
        for key, inner in parameter_schemas(schema).items():
            one = f"{lark.text(f'{_MARK}<{key}>')} {_value(lark, inner, f'{_MARK}</{key}>')}"
            parts.append(one if key in required else f"({one})?")
        return " ".join([*parts, lark.text(_TAIL)])


def _value(lark: Lark, schema: Mapping[str, Any], end: str) -> str:
    schema = resolved(schema)
    values = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
    if values and all(isinstance(value, str) for value in values):
        return f"{either([lark.text(value) for value in values])} {lark.text(end)}"
    if not values and schema_types(schema) == {"string"}:
        # No mark but that of the end: it would begin a tag.
        return lark.text_until(end, without=() if lark.has_token(_MARK) else (_MARK,))
    return f"{lark.json(schema)} {lark.text(end)}"


class _Call:
    """Reads one call."""

    def __init__(self, source: Source, calls: Calls) -> None:
        self._source = source
        self._calls = calls

    def read(self, tag: str) -> Parsing[bool]:
        """Read the call behind its first tag; False, and nothing is read: this is none."""
        source, start = self._source, self._source.at
        if tag == _ALL:
            yield from source.skip()
            tag = (yield from source.match(_HEAD)) or ""
        name = (yield from source.run(_NAME)).strip(" \"'") if tag else ""
        if not name or not (yield from source.match(">")):
            source.back(start)
            return False
        yield self._calls.start(name)
        schemas = parameter_schemas(self._calls.schemas.get(name, {}))
        written = "{"
        while (key := (yield from self._tag())) is not None and not key.startswith("/"):
            yield self._calls.arguments(f"{written}{json.dumps(key, ensure_ascii=False)}: ")
            written = ", "
            schema = schemas.get(key, {"type": "string"})
            text = schema_types(schema) == {"string"}
            if not (yield from (self._text() if text else self._value(key, schema))):
                return True
        if key == "/invoke":
            yield self._calls.arguments("{}" if written == "{" else "}")
            yield from _close(source)
        return True

    def _tag(self) -> Parsing[str | None]:
        """Read a tag and return what is in it; None, and nothing is read: there is none."""
        source, start = self._source, self._source.at
        yield from source.skip()
        if (yield from source.match(f"{_MARK}<")):
            name = yield from source.run(_NAME)
            if name and (yield from source.match(">")):
                return name
        source.back(start)
        return None

    def _text(self) -> Parsing[bool]:
        """Hand on a text as it comes, and read over its end."""
        yield self._calls.arguments('"')
        marker, _ = yield from self._source.until((f"{_MARK}</",), self._quoted, trim="")
        if marker is None:
            return False
        yield self._calls.arguments('"')
        yield from self._source.run(_NAME)
        return bool((yield from self._source.match(">")))

    def _quoted(self, text: str) -> ToolCallArguments:
        return self._calls.arguments(json.dumps(text, ensure_ascii=False)[1:-1])

    def _value(self, key: str, schema: Mapping[str, Any]) -> Parsing[bool]:
        """Hand on another value when it is complete."""
        found = yield from self._tree(key, schema, _DEEPEST)
        if found is not None:
            yield self._calls.arguments(found)
        return found is not None

    def _tree(self, key: str, schema: Mapping[str, Any], depth: int) -> Parsing[str | None]:
        """Read a value up to its closing tag, as JSON; None: it has none."""
        source = self._source
        children = list[tuple[str, str]]()
        while True:
            found = yield from source.take_until(f"{_MARK}<")
            name = (yield from source.run(_NAME)) if found is not None else ""
            if found is None or not (yield from source.match(">")) or not depth:
                return None
            if name == f"/{key}":
                return _joined(children) if children else as_json(found[0], schema_types(schema))
            if name.startswith("/"):
                return None
            inner = _schema_of(name, schema)
            child = yield from self._tree(name, inner, depth - 1)
            if child is None:
                return None
            children.append((name, child))


def _close(source: Source) -> Parsing[None]:
    """Read over the end of all calls, whose mark begins with a bracket."""
    start = source.at
    yield from source.skip()
    if not (yield from source.match(_NO_ALL)):
        source.at = start


def _schema_of(name: str, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a value within another; that of an unknown one is a text's."""
    schema = resolved(schema)
    if name == "item" and isinstance(schema.get("items"), Mapping):
        return {**{key: schema[key] for key in ("$defs", "definitions") if key in schema}, **schema["items"]}
    return parameter_schemas(schema).get(name, {"type": "string"})


def _joined(children: list[tuple[str, str]]) -> str:
    """An object, or a list; names that come several times have lists."""
    if all(name == "item" for name, _ in children):
        return f"[{', '.join(value for _, value in children)}]"
    grouped: dict[str, list[str]] = {}
    for name, value in children:
        grouped.setdefault(name, []).append(value)
    shown = ((name, values[0] if len(values) == 1 else f"[{', '.join(values)}]") for name, values in grouped.items())
    return "{" + ", ".join(f"{json.dumps(name, ensure_ascii=False)}: {value}" for name, value in shown) + "}"
