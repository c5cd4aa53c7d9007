"""Apertus: a list of objects with one key each, the function's name (its chat template)."""

import json
from collections.abc import Mapping
from typing import Any

from jaxllm.serving.reply.calls import Calls, new_call_id, tagged_calls
from jaxllm.serving.reply.json_calls import named_call
from jaxllm.serving.reply.json_values import json_string
from jaxllm.serving.reply.lark import Lark
from jaxllm.serving.reply.source import Parsing, Source

_BEGIN, _END = "<|tools_prefix|>", "<|tools_suffix|>"


class Apertus:
    """`<|tools_prefix|>[{"add": {"a": 1}}]<|tools_suffix|>`."""

    markers = (_BEGIN, _END)
    begins = (_BEGIN,)
    opening, separator, closing = f"{_BEGIN}[", ", ", f"]{_END}"
    forces_reasoning = False
    new_id = staticmethod(new_call_id)

    def parse(self, source: Source, calls: Calls) -> Parsing[None]:
        """Text, and lists of calls between tags."""
        return tagged_calls(source, self.begins, lambda _: _list(source, calls), (_END,))

    def call(self, lark: Lark, name: str, schema: Mapping[str, Any]) -> str:
        """One object of the list."""
        return f"{lark.text(f'{{{json.dumps(name)}: ')} {lark.json(schema)} {lark.text('}')}"


def _list(source: Source, calls: Calls) -> Parsing[bool]:
    start = source.at
    yield from source.skip()
    listed = yield from source.match("[")
    if not (yield from _call(source, calls)):
        source.back(start)
        return False
    while listed:
        start = source.at
        yield from source.skip()
        if (yield from source.match(",", "]")) == "]":
            break
        if not (yield from _call(source, calls)):
            source.back(start)
            break
    return True


def _call(source: Source, calls: Calls) -> Parsing[bool]:
    """Read one object; False, and anything may have been read: it is no call."""
    yield from source.skip()
    if not (yield from source.match("{")):
        return False
    yield from source.skip()
    name = yield from json_string(source)
    yield from source.skip()
    if not name or not (yield from source.match(":")):
        return False
    if not (yield from named_call(source, calls, name, stops=(_BEGIN, _END))):
        return False
    yield from source.skip()
    yield from source.match("}")
    return True
