"""Llama 3: a reply that is a JSON object (chat templates of Llama-3.1, 3.2 and 3.3)."""

from collections.abc import Mapping
from typing import Any

from jaxllm.serving.reply.calls import Calls, named_object, new_call_id
from jaxllm.serving.reply.json_calls import json_call
from jaxllm.serving.reply.lark import Lark
from jaxllm.serving.reply.parts import ContentDelta
from jaxllm.serving.reply.source import Parsing, Source

_MARK = "<|python_tag|>"


class Llama3Json:
    """`{"name": "add", "parameters": {"a": 1}}`; several are separated by `;`, and `<|python_tag|>` may precede."""

    markers = (_MARK,)
    opening, separator, closing = "", "; ", ""
    forces_reasoning = False
    new_id = staticmethod(new_call_id)

    def parse(self, source: Source, calls: Calls) -> Parsing[None]:
        """Calls at the beginning or behind the mark; everything else is content."""
        space = yield from source.skip()
        marker: str | None = (yield from source.match(_MARK)) or ""
        while marker is not None:
            if not (yield from _calls(source, calls)) and space + marker:
                yield ContentDelta(space + marker)
            marker, space = yield from source.until((_MARK,), ContentDelta)

    def call(self, lark: Lark, name: str, schema: Mapping[str, Any]) -> str:
        """One object."""
        return named_object(lark, name, schema, arguments="parameters")


def _calls(source: Source, calls: Calls) -> Parsing[bool]:
    """Read calls separated by semicolons; False: there is none."""
    start = source.at
    yield from source.skip()
    if not (yield from json_call(source, calls, needs_arguments=True)):
        source.back(start)
        return False
    while True:
        yield from source.skip()
        start = source.at
        if not (yield from source.match(";")):
            return True
        yield from source.skip()
        if not (yield from json_call(source, calls, needs_arguments=True)):
            source.back(start)
            return True
