# ruff: noqa: RUF001, RUF002  (these tokens are written with a wide bar)
"""DeepSeek-V3, R1 and V3.1: special tokens around each call (chat templates of DeepSeek-V3-0324 and V3.1)."""

import re
from collections.abc import Mapping
from typing import Any

from jaxllm.serving.reply.calls import NAME, Calls, new_call_id, tagged_calls
from jaxllm.serving.reply.json_calls import named_call
from jaxllm.serving.reply.lark import Lark
from jaxllm.serving.reply.source import Parsing, Source

_CALLS, _NO_CALLS = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
_CALL, _NO_CALL = "<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"
_THEN = "<｜tool▁sep｜>"
_TOKENS = (_CALLS, _NO_CALLS, _CALL, _NO_CALL, _THEN)
_STOPS = (*_TOKENS, f"```{_NO_CALL}")
_FENCE = re.compile("[`]*")


class DeepSeekV3:
    """Between the tokens: `function<｜tool▁sep｜>add`, and the arguments as a block of Markdown."""

    markers: tuple[str, ...] = _TOKENS
    begins = (_CALLS, _CALL)
    opening, separator, closing = _CALLS, "\n", _NO_CALLS
    forces_reasoning = False
    new_id = staticmethod(new_call_id)

    def parse(self, source: Source, calls: Calls) -> Parsing[None]:
        """Text, and calls between tokens; each newer and older form is read."""
        return tagged_calls(source, self.begins, lambda _: _call(source, calls), (_NO_CALLS,), (_NO_CALL, _THEN))

    def call(self, lark: Lark, name: str, schema: Mapping[str, Any]) -> str:
        """One call with its tokens."""
        begin, end = lark.text(f"{_CALL}function{_THEN}{name}\n```json\n"), lark.text(f"\n```{_NO_CALL}")
        return f"{begin} {lark.json(schema)} {end}"


class DeepSeekV31(DeepSeekV3):
    """Between the tokens: `add<｜tool▁sep｜>{"a": 1}`."""

    separator = ""

    def call(self, lark: Lark, name: str, schema: Mapping[str, Any]) -> str:
        """One call with its tokens."""
        return f"{lark.text(f'{_CALL}{name}{_THEN}')} {lark.json(schema)} {lark.text(_NO_CALL)}"


def _call(source: Source, calls: Calls) -> Parsing[bool]:
    """Read one call, with its tokens; False, and nothing is read: this is none."""
    start = source.at
    yield from source.skip()
    yield from source.match(_CALL)
    yield from source.skip()
    name = yield from source.run(NAME)
    if not (yield from source.match(_THEN)):
        name = ""
    yield from source.skip()
    if name == "function" and (yield from source.peek()) not in ("{", "`"):
        name = yield from source.run(NAME)
        yield from source.skip()
        if not (yield from source.peek()):
            # More of the name may have been to come.
            name = ""
    if (yield from source.match("```")):
        yield from source.match("json")
    if not (yield from named_call(source, calls, name, stops=_STOPS, outside=("```",))):
        source.back(start)
        return False
    yield from source.skip()
    yield from source.run(_FENCE)
    yield from source.skip()
    yield from source.match(_NO_CALL)
    return True
