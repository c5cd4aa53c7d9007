"""Calls as Python writes them: Llama 3.2 and 4 (Meta's prompt formats), and others."""

import ast
import json
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxllm.serving.reply.calls import NAME, Calls, new_call_id, tagged_calls
from jaxllm.serving.reply.lark import Lark, parameter_list
from jaxllm.serving.reply.nesting import Nesting
from jaxllm.serving.reply.schemas import parameter_schemas
from jaxllm.serving.reply.source import Parsing, Source


@dataclass(frozen=True, kw_only=True)
class Pythonic:
    """`[add(a=1), get_weather(place="Oak")]` is the reply, or stands between two marks."""

    begin: str = "<|python_start|>"
    end: str = "<|python_end|>"
    opening: str = "["
    separator: str = ", "
    closing: str = "]"
    leading: bool = True
    """Whether a reply may begin with calls, without the mark."""
    bracket: str = "["
    """What is before the first call; empty: calls have lines of their own."""
    forces_reasoning: bool = False
    new_id = staticmethod(new_call_id)

    @property
    def markers(self) -> tuple[str, ...]:
        """The marks."""
        return (self.begin, self.end)

    def parse(self, source: Source, calls: Calls) -> Parsing[None]:
        """A list of calls at the beginning or behind the mark; everything else is content."""
        if self.leading:
            start = source.at
            yield from source.skip()
            if (yield from _list(source, calls, self.bracket)):
                yield from source.skip()
                yield from source.match(self.end)
                yield from source.skip()
            else:
                source.back(start)
        yield from tagged_calls(source, (self.begin,), lambda _: _list(source, calls, self.bracket), (self.end,))

    def call(self, lark: Lark, name: str, schema: Mapping[str, Any]) -> str:
        """One call with its parameters in the schema's order; values are written as JSON."""
        schemas = parameter_schemas(schema)
        expressions = {key: f"{lark.text(f'{key}=')} {lark.json(each)}" for key, each in schemas.items()}
        listed = parameter_list(lark, expressions, schema.get("required", ()), ", ")
        return f"{lark.text(f'{name}(')} {listed} {lark.text(')')}"


def lfm2() -> Pythonic:
    """`<|tool_call_start|>[add(a=1)]<|tool_call_end|>`: LFM2 (its chat template)."""
    begin, end = "<|tool_call_start|>", "<|tool_call_end|>"
    return Pythonic(begin=begin, end=end, opening=f"{begin}[", closing=f"]{end}", leading=False)


def olmo3() -> Pythonic:
    """`<function_calls>\\nadd(a=1)\\n</function_calls>`, each call in a line: OLMo 3 (its chat template)."""
    begin, end = "<function_calls>", "</function_calls>"
    return Pythonic(begin=begin, end=end, opening=begin, separator="\n", closing=end, leading=False, bracket="")


def _list(source: Source, calls: Calls, bracket: str) -> Parsing[bool]:
    """Read a list of calls; each is handed out when it is complete. False: the first is none."""
    begin = source.at
    yield from source.skip()
    if bracket and not (yield from source.match(bracket)):
        source.back(begin)
        return False
    first = True
    while True:
        start = source.at
        yield from source.skip()
        found = yield from _call(source)
        if found is None:
            source.back(begin if first else start)
            return not first
        first = False
        yield calls.start(found[0])
        yield calls.arguments(found[1])
        source.commit()
        if not bracket:
            continue
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
