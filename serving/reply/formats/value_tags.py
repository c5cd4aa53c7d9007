"""Calls with tags around the function's name and around each of its parameters.

Values are plain text. The function's schema says which of them are JSON, or an attribute of the tag does.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from jaxllm.serving.reply.calls import NAME, Calls, close, new_call_id, tagged_calls
from jaxllm.serving.reply.lark import Lark, either
from jaxllm.serving.reply.parts import ToolCallArguments
from jaxllm.serving.reply.schemas import is_of_type, parameter_schemas, resolved, schema_types
from jaxllm.serving.reply.source import Parsing, Source

_ATTRIBUTES = re.compile(r"[^<>\n]*")
_TAG = re.compile(r"<[^<>]*>")
_CDATA, _NO_CDATA = "<![CDATA[", "]]>"
_TEXT = frozenset({"string"})


@dataclass(frozen=True, kw_only=True)
class ValueTags:
    """The tags of a family: `head` name `behind_name`, then `key` name `behind_key` value `behind_value`, then `tail`.

    They stand here without the space that the family writes: `space` is behind each of `head`'s end, of values and of
    `behind_name`; what is read may have any.
    """

    head: str
    behind_name: str
    key: str
    behind_key: str
    behind_value: str
    tail: str
    first: tuple[str, ...] = ()
    """Tags that come before `head`, and may be missing; the first begins calls too."""
    last: tuple[str, ...] = ()
    """Tags behind calls, which are dropped."""
    opening: str = ""
    separator: str = "\n"
    closing: str = ""
    before: str = ""
    """What is written before `head`."""
    after: str = ""
    """What is written behind `tail`."""
    space: str = "\n"
    padding: str = ""
    """What is written around a value, and is none of it."""
    attributes: bool = False
    """Whether names are values of attributes, in quotes."""
    typed: tuple[str, str] | None = None
    """Attributes of the key's tag of a text, and of other values: `{type}` stands for one of `types`."""
    types: Mapping[str, str] = field(default_factory=dict)
    """How the family calls the types of JSON, where it tells them apart."""
    number: tuple[str, str] | None = None
    """What is written before and behind a number of the call, behind its name; reading passes over attributes."""
    words: bool = False
    """Whether words such as `function` may stand between the tags before `head`."""
    cdata: bool = False
    """Whether a value may be between `<![CDATA[` and `]]>`."""
    bare_name: bool = False
    """Whether the name stands in no tag of its own, so that only what follows shows that it is one."""
    tokens: tuple[str, ...] = ()
    """Markers, where they are other than the tags."""
    forces_reasoning: bool = False
    new_id = staticmethod(new_call_id)

    @property
    def begins(self) -> tuple[str, ...]:
        """Tags that may begin a call."""
        return (*(tag for tag in self.first if tag.startswith("<")), self.head)

    @property
    def markers(self) -> tuple[str, ...]:
        """Tags that may be tokens: all that nothing is within."""
        every = (*self.first, self.head, self.key, *_tags(self.behind_key), self.behind_value, self.tail, *self.last)
        return self.tokens or tuple(dict.fromkeys(tag for tag in every if _TAG.fullmatch(tag)))

    def parse(self, source: Source, calls: Calls) -> Parsing[None]:
        """Text, and calls between tags, of which the outer ones may be missing."""
        return tagged_calls(source, self.begins, lambda tag: _Call(self, source, calls).read(tag), self.last)

    def call(self, lark: Lark, name: str, schema: Mapping[str, Any]) -> str:
        """One call with its tags, and its parameters in the schema's order."""
        required = schema.get("required", ())
        head, behind = f"{self.before}{self.head}{self._quoted(name)}", f"{self.behind_name}{self.space}"
        if self.number is None:
            begin = lark.text(head + behind)
        else:
            begin = f"{lark.text(head + self.number[0])} /[0-9]{{1,4}}/ {lark.text(self.number[1] + behind)}"
        parameters = []
        for key, inner in parameter_schemas(schema).items():
            one = self._parameter(lark, key, inner)
            parameters.append(one if key in required else f"({one})?")
        return " ".join([begin, *parameters, lark.text(self.tail + self.after)])

    def _quoted(self, name: str) -> str:
        return f'"{name}"' if self.attributes else name

    def _parameter(self, lark: Lark, key: str, schema: Mapping[str, Any]) -> str:
        is_text, value = self._value(lark, schema)
        kinds = self._kinds(schema, is_text=is_text)
        begin = either([
            lark.text(f"{self.key}{self._quoted(key)}{kind}{self.behind_key}{self.padding}") for kind in kinds
        ])  # fmt: skip
        return " ".join([begin, value, *([lark.text(self.space)] if self.space else [])])

    def _kinds(self, schema: Mapping[str, Any], *, is_text: bool) -> list[str]:
        """The attributes that may tell the type of a value."""
        if self.typed is None:
            return [""]
        if is_text or not self.types:
            return [self.typed[0 if is_text else 1]]
        known = schema_types(resolved(schema)) - _TEXT or set(self.types)
        return [self.typed[1].format(type=name) for name in sorted({self.types[each] for each in known})]

    def _value(self, lark: Lark, schema: Mapping[str, Any]) -> tuple[bool, str]:
        """Whether a value is text, and the grammar of it and the tag behind it."""
        end, schema = f"{self.padding}{self.behind_value}", resolved(schema)
        values = schema.get("enum") or ([schema["const"]] if "const" in schema else None)
        if values:
            texts = [isinstance(value, str) for value in values]
            if any(texts) and (all(texts) or self.typed is None):
                shown = [value if isinstance(value, str) else json.dumps(value) for value in values]
                return True, f"{either([lark.text(value) for value in shown])} {lark.text(end)}"
        elif schema_types(schema) == _TEXT:
            return True, lark.text_until(end, without=self._no_text)
        return False, f"{lark.json(schema)} {lark.text(end)}"

    @property
    def _no_text(self) -> tuple[str, ...]:
        """What would end a value otherwise than its own end."""
        return tuple(dict.fromkeys(end for end in self.value_ends if end != self.behind_value))

    @property
    def value_ends(self) -> tuple[str, ...]:
        """Tags that end a value: its own, or another's where that was left out."""
        if not self.padding:
            return (self.behind_value,)
        return (self.behind_value, f"{self.padding}{self.key}", self.tail)


class _Call:
    """Reads one call."""

    def __init__(self, tags: ValueTags, source: Source, calls: Calls) -> None:
        self._tags = tags
        self._source = source
        self._calls = calls
        self._written = "{"
        self._ends = tags.value_ends

    def read(self, tag: str) -> Parsing[bool]:
        """Read the call behind its first tag; False, and nothing is read: this is none."""
        source, tags, start = self._source, self._tags, self._source.at
        name = ""
        if tag == tags.head or (yield from self._head()):
            name = yield from self._name()
        if not name:
            source.back(start)
            return False
        yield self._calls.start(name)
        schema = self._calls.schemas.get(name, {})
        types = {key: schema_types(each) for key, each in parameter_schemas(schema).items()}
        yield from source.skip()
        marker = yield from source.match(tags.key, tags.tail)
        while marker == tags.key:
            marker = yield from self._parameter(types)
        if marker == tags.tail:
            yield self._calls.arguments("{}" if self._written == "{" else "}")
            for _ in tags.last:
                yield from close(source, tags.last)
        return True

    def _head(self) -> Parsing[bool]:
        """Read over the tags that may come before the head, and over it."""
        source, tags = self._source, self._tags
        while True:
            yield from source.skip()
            found = yield from source.match(*tags.first, tags.head)
            if found is None and tags.words:
                found = yield from source.run(NAME)
            if not found or found == tags.head:
                return bool(found)

    def _name(self) -> Parsing[str]:
        """Read the name and what is behind it; empty: there is none."""
        source, tags = self._source, self._tags
        if not tags.bare_name:
            text = yield from source.run(_ATTRIBUTES)
            name = _attribute(text) if tags.attributes else text
            return name if name and (yield from source.match(tags.behind_name)) else ""
        yield from source.skip()
        name = yield from source.run(NAME)
        yield from source.skip()
        if tags.behind_name:
            return name if (yield from source.match(tags.behind_name)) else ""
        at = source.at
        known = yield from source.match(tags.key, tags.tail)
        source.at = at
        return name if known else ""

    def _parameter(self, types: Mapping[str, set[str]]) -> Parsing[str | None]:
        """Read a parameter whose tag has begun; returns the tag that follows."""
        source, tags = self._source, self._tags
        text = yield from source.run(_ATTRIBUTES)
        if not (yield from self._behind_key()):
            return None
        key = _attribute(text) if tags.attributes else text.strip() if tags.bare_name else text
        yield self._calls.arguments(f"{self._written}{json.dumps(key, ensure_ascii=False)}: ")
        self._written = ", "
        if tags.padding:
            yield from source.match(tags.padding)
        quoted = tags.cdata and (yield from source.match(_CDATA))
        self._ends = (f"{_NO_CDATA}{tags.behind_value}",) if quoted else tags.value_ends
        kinds = types.get(key, set(_TEXT))
        typed = tags.typed is not None and tags.typed[1].partition("{")[0] in text
        if (kinds == _TEXT and not typed) or (tags.typed is not None and tags.typed[0] in text):
            read = self._text()
        else:
            read = self._json(kinds - _TEXT if typed else kinds)
        marker = yield from read
        if marker in (tags.behind_value, f"{_NO_CDATA}{tags.behind_value}"):
            yield from source.skip()
            marker = yield from source.match(tags.key, tags.tail)
        return marker and marker.removeprefix(tags.padding)

    def _behind_key(self) -> Parsing[bool]:
        """Read over what is behind a key, which may have space in it between tags."""
        source = self._source
        for tag in _tags(self._tags.behind_key):
            if not (yield from source.match(tag)):
                yield from source.skip()
                if not (yield from source.match(tag)):
                    return False
        return True

    def _text(self) -> Parsing[str | None]:
        """Hand on a text as it comes; the padding before the tag is none of it."""
        tags = self._tags
        yield self._calls.arguments('"')
        marker, rest = yield from self._source.until(self._ends, self._quoted, trim=tags.padding)
        if marker is not None:
            yield self._quoted(rest if tags.padding and marker.startswith(tags.padding) else rest[len(tags.padding) :])
            yield self._calls.arguments('"')
        return marker

    def _quoted(self, text: str) -> ToolCallArguments:
        return self._calls.arguments(json.dumps(text, ensure_ascii=False)[1:-1])

    def _json(self, types: set[str]) -> Parsing[str | None]:
        """Hand on another value when it is complete; as a text, if it is nothing better."""
        source = self._source
        found = yield from source.take_until(*self._ends)
        if found is None:
            yield self._calls.arguments(source.text[source.at :])
            source.at = len(source.text)
            return None
        yield self._calls.arguments(as_json(found[0].removesuffix(self._tags.padding), types))
        return found[1]


def _tags(text: str) -> list[str]:
    """Tags without the space between them."""
    return re.findall(r"<[^<>]*>|[^<\s]+", text)


def _attribute(text: str) -> str:
    """The first value in quotes, or all of it without quotes and space."""
    text = text.strip()
    if text[:1] in ('"', "'"):
        return text[1:].partition(text[0])[0]
    return text


def as_json(text: str, types: set[str]) -> str:
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
