"""Llama 3: objects of JSON, wherever they stand (chat templates of Llama-3.1, 3.2 and 3.3)."""

from collections.abc import Callable, Mapping
from typing import Any

from jaxllm.serving.reply.calls import Calls, named_object, new_call_id
from jaxllm.serving.reply.json_calls import json_call
from jaxllm.serving.reply.lark import Lark
from jaxllm.serving.reply.parts import ContentDelta, ReplyPart
from jaxllm.serving.reply.source import Parsing, Source, behind

_MARK, _FENCE = "<|python_tag|>", "```"
_BEGINS = ("{", "[", _FENCE, _MARK)
_LEAD = (*_BEGINS[1:], *(f"{_FENCE}{language}" for language in ("json", "python", "tool_call", "tool_code")))
"""The text that may precede the first of several calls."""
_BETWEEN = (",", ";", "]", "}", _MARK)
_OUTSIDE = ("; {", ";{", *(f'{{{space}"name"' for space in ("", " ", "\n", "\n  ", "\n    ")), _FENCE, _MARK)
"""Ends a call that is not closed; a brace that ends one stands where no value may begin."""


class Llama3Json:
    """`{"name": "add", "parameters": {"a": 1}}`; of several, any may be joined by any mark."""

    markers = begins = (_MARK,)
    opening, separator, closing = "", "; ", ""
    forces_reasoning = False
    new_id = staticmethod(new_call_id)

    def parse(self, source: Source, calls: Calls) -> Parsing[None]:
        """Calls wherever they stand; what joins them, and lists and blocks around them, are no content."""
        spoken = called = fenced = False

        def content(text: str) -> ContentDelta:
            nonlocal spoken
            spoken = True
            return ContentDelta(text)

        make: Callable[[str], ReplyPart] = content
        while True:
            dropped = source.dropped
            every = (*_BEGINS, *(tag for tag in dropped if not tag.startswith(_BEGINS)))
            marker, space = yield from source.until(() if source.tired else every, make)
            if marker is None:
                return
            source.at -= len(marker)
            if (yield from source.match(*dropped)):
                space = yield from source.skip()
                make = behind(space, content) if spoken else content
                continue
            start = source.at
            lead, _ = yield from _read_over(source, _LEAD)
            if (yield from json_call(source, calls, needs_arguments=True, stops=(_MARK,), outside=_OUTSIDE)):
                called, fenced = True, fenced or any(piece.startswith(_FENCE) for piece in lead)
                behind_call, space = yield from _read_over(source, (*_BETWEEN, *((_FENCE,) * fenced)))
                fenced = fenced and _FENCE not in behind_call
                make = behind(space, content) if spoken else content
                continue
            source.back(start + len(marker))
            if not (called and marker == _MARK):
                yield content(space + marker)
            make = content

    def call(self, lark: Lark, name: str, schema: Mapping[str, Any]) -> str:
        """One object."""
        return named_object(lark, name, schema, arguments="parameters")


def _read_over(source: Source, pieces: tuple[str, ...]) -> Parsing[tuple[list[str], str]]:
    """Read over space and some pieces; returns the pieces and the space after them."""
    found = list[str]()
    while True:
        space = yield from source.skip()
        piece = yield from source.match(*pieces)
        if piece is None:
            return found, space
        found.append(piece)
