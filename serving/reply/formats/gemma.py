"""FunctionGemma and Gemma 4: `call:add{a:1}`, with marks for quotes (their chat templates)."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxllm.serving.reply.calls import NAME, Calls, new_call_id, tagged_calls
from jaxllm.serving.reply.json_values import json_string
from jaxllm.serving.reply.lark import Lark, either, parameter_list
from jaxllm.serving.reply.schemas import parameter_schemas, resolved, schema_types
from jaxllm.serving.reply.source import Parsing, Source

_PLAIN = re.compile(r"[^,\[\]{}<\n]*")
_KEY = re.compile(r"[^:,\[\]{}<\n]*")
_DEEPEST = 64
"""Levels of brackets that are read."""


class _NoValueError(Exception):
    """What was read is no value."""


@dataclass(frozen=True, kw_only=True)
class Gemma:
    """`<begin>call:add{text:<quote>12<quote>,n:12}<end>`, once for each call."""

    begin: str
    end: str
    quote: str
    opening: str = ""
    separator: str = ""
    closing: str = ""
    forces_reasoning: bool = False
    new_id = staticmethod(new_call_id)

    @property
    def markers(self) -> tuple[str, ...]:
        """The tags and the quote."""
        return (self.begin, self.end, self.quote)

    def parse(self, source: Source, calls: Calls) -> Parsing[None]:
        """Text, and calls between tags; each is handed out when it is complete."""
        return tagged_calls(source, (self.begin,), lambda _: _call(source, calls, self.quote), (self.end,))

    def call(self, lark: Lark, name: str, schema: Mapping[str, Any]) -> str:
        """One call with its tags, and its parameters in the schema's order; values other than texts are JSON."""
        expressions = {
            key: f"{lark.text(f'{key}:')} {self._value(lark, inner)}"
            for key, inner in parameter_schemas(schema).items()
        }
        listed = parameter_list(lark, expressions, schema.get("required", ()), ",")
        return f"{lark.text(f'{self.begin}call:{name}{{')} {listed} {lark.text(f'}}{self.end}')}"

    def _value(self, lark: Lark, schema: Mapping[str, Any]) -> str:
        schema = resolved(schema)
        values = schema.get("enum") or ([schema["const"]] if "const" in schema else [])
        if values and all(isinstance(value, str) for value in values):
            return either([lark.text(f"{self.quote}{value}{self.quote}") for value in values])
        if not values and schema_types(schema) == {"string"}:
            return f"{lark.text(self.quote)} {lark.text_until(self.quote)}"
        return lark.json(schema)


def functiongemma() -> Gemma:
    """FunctionGemma's tags."""
    return Gemma(begin="<start_function_call>", end="<end_function_call>", quote="<escape>")


def gemma4() -> Gemma:
    """Gemma 4's tags."""
    return Gemma(begin="<|tool_call>", end="<tool_call|>", quote='<|"|>')


def _call(source: Source, calls: Calls, quote: str) -> Parsing[bool]:
    start = source.at
    yield from source.skip()
    yield from source.match("call:", ":")
    name = yield from source.run(NAME)
    try:
        found = (yield from _Values(source, quote).read(_DEEPEST)) if name else None
    except _NoValueError:
        found = None
    if not isinstance(found, dict):
        source.back(start)
        return False
    types = {key: schema_types(each) for key, each in parameter_schemas(calls.schemas.get(name, {})).items()}
    arguments = {key: _typed(value, types.get(key, set())) for key, value in found.items()}
    yield calls.start(name)
    yield calls.arguments(json.dumps(arguments, ensure_ascii=False))
    source.commit()
    return True


def _typed(value: Any, types: set[str]) -> Any:
    """A quoted value that should have been none is taken out of its quotes."""
    if isinstance(value, str) and types and "string" not in types:
        return _json(value)
    return value


def _json(text: str) -> Any:
    """A value of JSON, or the text where it is none."""
    try:
        return json.loads(text, parse_constant=str)
    except (ValueError, RecursionError):
        return text


class _Values:
    """Reads values; all raise `_NoValueError`."""

    def __init__(self, source: Source, quote: str) -> None:
        self._source = source
        self._quote = quote

    def read(self, depth: int) -> Parsing[Any]:
        """Read a value with at most so many levels of brackets."""
        source = self._source
        yield from source.skip()
        if (yield from source.match(self._quote)):
            return (yield from self._quoted())
        following = yield from source.peek()
        if following == '"':
            return (yield from self._json_string())
        if following in ("{", "["):
            if not depth:
                raise _NoValueError
            source.at += 1
            return (yield from (self._object(depth - 1) if following == "{" else self._list(depth - 1)))
        text = yield from source.run(_PLAIN)
        if not text.strip():
            raise _NoValueError
        return _json(text.strip())

    def _quoted(self) -> Parsing[str]:
        found = yield from self._source.take_until(self._quote)
        if found is None:
            raise _NoValueError
        return found[0]

    def _json_string(self) -> Parsing[str]:
        found = yield from json_string(self._source)
        if found is None:
            raise _NoValueError
        return found

    def _object(self, depth: int) -> Parsing[dict[str, Any]]:
        source, found = self._source, dict[str, Any]()
        while True:
            yield from source.skip()
            if (yield from source.match("}")):
                return found
            key = yield from self._key()
            yield from source.skip()
            if not (yield from source.match(":")):
                raise _NoValueError
            found[key] = yield from self.read(depth)
            if (yield from self._next("}")):
                return found

    def _list(self, depth: int) -> Parsing[list[Any]]:
        source, found = self._source, list[Any]()
        while True:
            yield from source.skip()
            if (yield from source.match("]")):
                return found
            found.append((yield from self.read(depth)))
            if (yield from self._next("]")):
                return found

    def _next(self, closing: str) -> Parsing[bool]:
        """Read over what is behind a value; True: it closes."""
        yield from self._source.skip()
        mark = yield from self._source.match(",", closing)
        if mark is None:
            raise _NoValueError
        return mark == closing

    def _key(self) -> Parsing[str]:
        source = self._source
        if (yield from source.match(self._quote)):
            return (yield from self._quoted())
        if (yield from source.peek()) == '"':
            return (yield from self._json_string())
        key = (yield from source.run(_KEY)).strip()
        if not key:
            raise _NoValueError
        return key
