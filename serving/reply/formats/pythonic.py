"""Llama 3.2 and 4: calls as Python writes them (Meta's prompt formats of Llama 3.2 and Llama 4)."""

import ast
import json
import math
import warnings
from collections.abc import Mapping
from typing import Any

from jaxllm.serving.reply.calls import NAME, Calls, new_call_id
from jaxllm.serving.reply.lark import Lark
from jaxllm.serving.reply.nesting import Nesting
from jaxllm.serving.reply.parts import ContentDelta
from jaxllm.serving.reply.schemas import parameter_schemas
from jaxllm.serving.reply.source import Parsing, Source

_BEGIN, _END = "<|python_start|>", "<|python_end|>"


class Pythonic:
    """`[add(a=1), get_weather(place="Oak")]` is the reply, or stands between two tokens of Llama 4."""

    markers = (_BEGIN, _END)
    opening, separator, closing = "[", ", ", "]"
    forces_reasoning = False
    new_id = staticmethod(new_call_id)

    def parse(self, source: Source, calls: Calls) -> Parsing[None]:
        """A list of calls at the beginning or behind the mark; everything else is content."""
        space = yield from source.skip()
        marker: str | None = (yield from source.match(_BEGIN)) or ""
        while marker is not None:
            start = source.at
            if (yield from _list(source, calls)):
                yield from source.skip()
                yield from source.match(_END)
                yield from source.skip()
            else:
                source.at = start
                if space + marker:
                    yield ContentDelta(space + marker)
            marker, space = yield from source.until((_BEGIN,), ContentDelta)

    def call(self, lark: Lark, name: str, schema: Mapping[str, Any]) -> str:
        """One call with its parameters in the schema's order; values are written as JSON."""
        required = schema.get("required", ())
        schemas = parameter_schemas(schema)
        expressions = {key: f"{lark.text(f'{key}=')} {lark.json(each)}" for key, each in schemas.items()}
        return f"{lark.text(f'{name}(')} {_parameters(lark, expressions, required)} {lark.text(')')}"


def _parameters(lark: Lark, expressions: Mapping[str, str], required: Any) -> str:
    """Parameters with commas between them, of which those not required may be missing.

    `first` is what may come while nothing has been written, `rest` what may follow something.
    """
    comma = lark.text(", ")
    first = rest = lark.rule('""')
    for key, expression in reversed(list(expressions.items())):
        skipped_first, skipped_rest = ("", "") if key in required else (f" | {first}", f" | {rest}")
        first = lark.rule(f"{expression} {rest}{skipped_first}")
        rest = lark.rule(f"{comma} {expression} {rest}{skipped_rest}")
    return first


def _list(source: Source, calls: Calls) -> Parsing[bool]:
    """Read a list of calls; each is handed out when it is complete. False: the first is none."""
    yield from source.skip()
    if not (yield from source.match("[")):
        return False
    first = True
    while True:
        start = source.at
        yield from source.skip()
        found = yield from _call(source)
        if found is None:
            source.at = start
            return not first
        first = False
        yield calls.start(found[0])
        yield calls.arguments(found[1])
        source.commit()
        yield from source.skip()
        if (yield from source.match(",", "]")) != ",":
            return True


def _call(source: Source) -> Parsing[tuple[str, str] | None]:
    """Read one call: its name, and its arguments as JSON. None, and anything may have been read: this is none."""
    name = yield from source.run(NAME)
    if not name or (yield from source.peek()) != "(":
        return None
    nesting, pieces, start = Nesting("\"'"), list[str](), source.at + 1
    while True:
        source.at, end = nesting.scan(source.text, source.at, stops=",")
        if end:
            pieces.append(source.text[start : source.at - 1])
            start = source.at
        if end == ")":
            break
        if not end and not (yield from source.more()):
            return None
    arguments = _arguments(pieces)
    return None if arguments is None else (name, arguments)


def _arguments(pieces: list[str]) -> str | None:
    """Pieces such as `a=1` as an object of JSON; None: they are something else."""
    if not pieces[-1].strip():
        pieces = pieces[:-1]
    found = {}
    for piece in pieces:
        key, equals, value = piece.partition("=")
        if not equals or not key.strip():
            return None
        try:
            found[key.strip()] = _literal(value.strip())
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return None
    return json.dumps(found, ensure_ascii=False)


def _literal(text: str) -> Any:
    """A value written as JSON or Python. Raises `ValueError` and what Python's parser raises."""
    try:
        return json.loads(text, parse_constant=_refuse)
    except ValueError:
        with warnings.catch_warnings():
            # Python warns of escapes that it does not know.
            warnings.simplefilter("ignore")
            value = ast.literal_eval(text)
        return _plain(value)


def _plain(value: Any) -> Any:
    """A value of Python as one that JSON has. Raises `ValueError`."""
    if isinstance(value, dict):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set)):
        return [_plain(inner) for inner in value]
    if isinstance(value, (str, int, float, bool, type(None))) and not _is_odd(value):
        return value
    raise ValueError(f"{type(value).__name__} is not in JSON")


def _is_odd(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _refuse(name: str) -> None:
    raise ValueError(name)
