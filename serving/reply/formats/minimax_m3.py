"""MiniMax-M3: a tag for each parameter and whatever is in it, with a mark before every tag (its chat template)."""

import json
import re
from collections.abc import Mapping
from typing import Any

from jaxllm.serving.reply.calls import Calls, new_call_id, tagged_calls
from jaxllm.serving.reply.json_calls import named_call
from jaxllm.serving.reply.lark import Lark, either
from jaxllm.serving.reply.parts import ToolCallArguments
from jaxllm.serving.reply.scalars import whole_characters
from jaxllm.serving.reply.schemas import item_schema, parameter_schemas, resolved, schema_types
from jaxllm.serving.reply.source import Parsing, Source
from jaxllm.serving.reply.values import as_json

_MARK = "]<]minimax[>["
_ALL, _NO_ALL = f"{_MARK}<tool_call>", f"{_MARK}</tool_call>"
_HEAD, _TAIL = f"{_MARK}<invoke name=", f"{_MARK}</invoke>"
_NAME = re.compile(r"[^<>\n]*")
_STRING = {"type": "string"}
_DEEPEST = 64
"""Levels of tags that are read."""


class MiniMaxM3:
    """`<invoke name="add"><a>1</a></invoke>` with the mark before each tag, all between `<tool_call>` tags.

    Lists are `<item>` tags, or one tag several times.
    """

    # Others' tags are tokens of some tokenizers, and then no text can be them.
    markers = (_MARK, "<tool_call>", "</tool_call>", "</invoke>")
    begins = (_ALL, _HEAD)
    opening, separator, closing = f"{_ALL}\n", "\n", f"\n{_NO_ALL}"
    forces_reasoning = False
    new_id = staticmethod(new_call_id)

    def parse(self, source: Source, calls: Calls) -> Parsing[None]:
        """Text, and calls between tags; the outer tags may be missing."""
        return tagged_calls(source, self.begins, lambda tag: _Call(source, calls).read(tag), stray=(_NO_ALL, _TAIL))

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
        """Read the call after its first tag; False, and nothing is read: this is none."""
        source, start = self._source, self._source.at
        if tag == _ALL:
            yield from source.skip()
            tag = (yield from source.match(_HEAD)) or ""
        name = (yield from source.run(_NAME)).strip(" \"'") if tag else ""
        if not name or not (yield from source.match(">")):
            source.back(start)
            return False
        yield from source.skip()
        if (yield from source.comes("{")):
            yield from named_call(source, self._calls, name, stops=(_MARK,))
            yield from source.skip()
            yield from source.match(_TAIL)
            return True
        yield self._calls.start(name)
        yield from self._parameters(self._calls.schemas.get(name, {}))
        return True

    def _parameters(self, schema: Mapping[str, Any]) -> Parsing[None]:
        schemas, written = parameter_schemas(schema), "{"
        while (key := (yield from self._tag())) is not None:
            if _ends_call(key):
                yield self._calls.arguments("{}" if written == "{" else "}")
                if key != "/invoke":
                    self._unread(key)
                return
            if key.startswith("/"):
                continue
            yield self._calls.arguments(f"{written}{json.dumps(key, ensure_ascii=False)}: ")
            written = ", "
            # What the function does not know may be a text, or have tags within.
            is_text = key in schemas and schema_types(schemas[key]) == {"string"}
            if not (yield from (self._text(key) if is_text else self._value(key, schemas.get(key, _STRING)))):
                return

    def _unread(self, tag: str) -> None:
        """Leave a tag to be read again."""
        self._source.at -= len(f"{_MARK}<{tag}>")

    def _tag(self) -> Parsing[str | None]:
        """Read up to the next tag and return what is in it; None: there is none."""
        source = self._source
        while (yield from source.take_until(f"{_MARK}<")) is not None:
            name = yield from source.run(_NAME)
            if name and (yield from source.match(">")):
                return name
        return None

    def _text(self, key: str) -> Parsing[bool]:
        """Hand on a text as it comes, and read over its end."""
        source = self._source
        yield self._calls.arguments('"')
        marker, _ = yield from source.until((_MARK,), self._quoted, trim="")
        if marker is None:
            return False
        yield self._calls.arguments('"')
        source.at -= len(_MARK)
        tag = yield from self._tag()
        if tag is not None and tag != f"/{key}":
            self._unread(tag)
        return tag is not None

    def _quoted(self, text: str) -> ToolCallArguments:
        return self._calls.arguments(json.dumps(whole_characters(text), ensure_ascii=False)[1:-1])

    def _value(self, key: str, schema: Mapping[str, Any]) -> Parsing[bool]:
        """Hand on another value when it is complete."""
        found = yield from self._tree(key, schema, _DEEPEST)
        if found is not None:
            yield self._calls.arguments(found)
        return found is not None

    def _tree(self, key: str, schema: Mapping[str, Any], depth: int) -> Parsing[str | None]:
        """Read a value up to its closing tag, or another's where that was left out, as JSON; None: the text ended."""
        source = self._source
        children = list[tuple[str, str]]()
        while True:
            found = yield from source.take_until(_MARK)
            if found is None:
                return None
            text = found[0]
            source.at -= len(_MARK)
            name = yield from self._tag()
            if name is None or not depth:
                return None
            if name.startswith("/") or _ends_call(name) or (text.strip() and not children):
                if name != f"/{key}":
                    self._unread(name)
                return _joined(children) if children else as_json(text, schema_types(schema))
            child = yield from self._tree(name, _schema_of(name, schema), depth - 1)
            if child is None:
                return None
            children.append((name, child))


def _ends_call(tag: str) -> bool:
    return tag in ("/invoke", "/tool_call", "tool_call") or tag.startswith("invoke name=")


def _schema_of(name: str, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema of a value within another; that of an unknown one is a text's."""
    schema = resolved(schema)
    if name == "item" and isinstance(schema.get("items"), Mapping):
        return item_schema(schema)
    return parameter_schemas(schema).get(name, _STRING)


def _joined(children: list[tuple[str, str]]) -> str:
    """An object, or a list; names that come several times have lists."""
    if all(name == "item" for name, _ in children):
        return f"[{', '.join(value for _, value in children)}]"
    grouped: dict[str, list[str]] = {}
    for name, value in children:
        grouped.setdefault(name, []).append(value)
    shown = ((name, values[0] if len(values) == 1 else f"[{', '.join(values)}]") for name, values in grouped.items())
    return "{" + ", ".join(f"{json.dumps(name, ensure_ascii=False)}: {value}" for name, value in shown) + "}"
