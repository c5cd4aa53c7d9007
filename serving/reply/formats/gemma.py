"""FunctionGemma and Gemma 4: `call:add{a:1}`, with marks for quotes (their chat templates)."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from jaxllm.serving.reply.calls import NAME, Calls, new_call_id, tagged_calls
from jaxllm.serving.reply.json_values import json_string
from jaxllm.serving.reply.lark import Lark, either, parameter_list
from jaxllm.serving.reply.scalars import whole_characters
from jaxllm.serving.reply.schemas import item_schema, parameter_schemas, resolved, schema_types
from jaxllm.serving.reply.source import Parsing, Source
from jaxllm.serving.reply.values import as_json

_PLAIN = re.compile(r"[^,\[\]{}<\n]*")
_KEY = re.compile(r"[^:,\[\]{}<\n]*")
_DEEPEST = 64
"""Levels of brackets that are read."""


class _NoValueError(Exception):
    """The text that was read is no value."""


class _EndOfTextError(_NoValueError):
    """The text is over."""


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

    @property
    def begins(self) -> tuple[str, ...]:
        """Tags that begin calls."""
        return (self.begin,)

    def parse(self, source: Source, calls: Calls) -> Parsing[None]:
        """Text, and calls between tags; each is handed out when it is complete."""
        ends = (self.end, self.begin)
        return tagged_calls(source, self.begins, lambda _: _call(source, calls, self.quote, ends), (self.end,))

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


def _call(source: Source, calls: Calls, quote: str, ends: tuple[str, ...]) -> Parsing[bool]:
    start = source.at
    yield from source.skip()
    yield from source.match("call:", ":")
    name = yield from source.run(NAME)
    found: Any = None
    try:
        yield from source.skip()
        if name:
            found = {} if (yield from source.comes(*ends)) else (yield from _Values(source, quote, ends).read(_DEEPEST))
    except _EndOfTextError:
        # What is read of arguments is no JSON before they are closed.
        yield calls.start(name)
        source.at = len(source.text)
        return True
    except _NoValueError:
        found = None
    if not isinstance(found, dict):
        source.back(start)
        return False
    yield calls.start(name)
    yield calls.arguments(_written(found, calls.schemas.get(name, {})))
    source.commit()
    return True


class _Bare(str):
    """A value without quotes."""

    __slots__ = ()


def _written(value: Any, schema: Mapping[str, Any]) -> str:
    """A value as JSON that is of its schema's types: one without quotes may be a text, and one in quotes none."""
    schema = resolved(schema)
    if isinstance(value, dict):
        schemas = parameter_schemas(schema)
        members = (f"{_quoted(key)}: {_written(inner, schemas.get(key, {}))}" for key, inner in value.items())
        return f"{{{', '.join(members)}}}"
    if isinstance(value, list):
        return f"[{', '.join(_written(inner, item_schema(schema)) for inner in value)}]"
    types = schema_types(schema)
    if types == {"string"} or not (isinstance(value, _Bare) or (types and "string" not in types)):
        return _quoted(value)
    return as_json(value, types)


def _quoted(text: str) -> str:
    return json.dumps(whole_characters(text), ensure_ascii=False)


class _Values:
    """Reads values; all raise `_NoValueError`."""

    def __init__(self, source: Source, quote: str, ends: tuple[str, ...]) -> None:
        """`ends` are markup that ends values although they were not closed."""
        self._source = source
        self._quote = quote
        self._ends = ends

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
        return _Bare((yield from self._plain(_PLAIN)))

    def _fail(self) -> Parsing[NoReturn]:
        raise _NoValueError if (yield from self._source.peek()) else _EndOfTextError

    def _plain(self, pattern: re.Pattern[str]) -> Parsing[str]:
        """Read characters of a pattern, and any that begin no markup."""
        source, start = self._source, self._source.at
        while True:
            yield from source.run(pattern)
            if (yield from source.peek()) != "<" or (yield from source.comes(self._quote, *self._ends)):
                break
            source.at += 1
        text = source.text[start : source.at].strip()
        if not text:
            yield from self._fail()
        return text

    def _quoted(self) -> Parsing[str]:
        found = yield from self._source.take_until(self._quote, *self._ends)
        if found is None:
            raise _EndOfTextError
        if found[1] != self._quote:
            self._source.at -= len(found[1])
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
            if (yield from self._closes("}")):
                return found
            key = yield from self._key()
            yield from source.skip()
            if not (yield from source.match(":")):
                yield from self._fail()
            yield from source.skip()
            if (yield from source.comes(*self._ends)):
                return found
            found[key] = yield from self.read(depth)
            if (yield from self._next("}")):
                return found

    def _list(self, depth: int) -> Parsing[list[Any]]:
        source, found = self._source, list[Any]()
        while True:
            yield from source.skip()
            if (yield from self._closes("]")):
                return found
            found.append((yield from self.read(depth)))
            if (yield from self._next("]")):
                return found

    def _closes(self, closing: str) -> Parsing[bool]:
        """Read over a closing bracket; markup in its place is not read."""
        return bool((yield from self._source.match(closing))) or (yield from self._source.comes(*self._ends))

    def _next(self, closing: str) -> Parsing[bool]:
        """Read over what is after a value; True: it closes."""
        yield from self._source.skip()
        if (yield from self._closes(closing)):
            return True
        if not (yield from self._source.match(",")):
            yield from self._fail()
        return False

    def _key(self) -> Parsing[str]:
        source = self._source
        if (yield from source.match(self._quote)):
            return (yield from self._quoted())
        if (yield from source.peek()) == '"':
            return (yield from self._json_string())
        return (yield from self._plain(_KEY))
