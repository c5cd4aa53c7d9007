"""Mistral: `[TOOL_CALLS]`, in its older and newer forms.

Sources: chat templates of Mistral-7B-Instruct-v0.3 and Mistral-Small-3.2, and mistral-common's tokenizers (v3, v11).
"""

import random
import re
import string
from collections.abc import Mapping
from typing import Any

from jaxllm.serving.reply.calls import NAME, Calls, named_object, tagged_calls
from jaxllm.serving.reply.json_calls import json_calls, named_call
from jaxllm.serving.reply.lark import Lark
from jaxllm.serving.reply.source import Parsing, Source

_MARK = "[TOOL_CALLS]"
_STOPS = (_MARK, "[CALL_ID]", "[ARGS]")
_CALL_ID = re.compile("[a-zA-Z0-9]*")
_ID_CHARACTERS = string.ascii_letters + string.digits


class Mistral:
    """`[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}}]`."""

    markers: tuple[str, ...] = _STOPS
    begins = (_MARK,)
    opening, separator, closing = f"{_MARK}[", ", ", "]"
    forces_reasoning = False

    def parse(self, source: Source, calls: Calls) -> Parsing[None]:
        """Text, and calls of either form after the mark."""
        return tagged_calls(source, (_MARK,), lambda _: _calls(source, calls))

    def call(self, lark: Lark, name: str, schema: Mapping[str, Any]) -> str:
        """One object of the list."""
        return named_object(lark, name, schema)

    def new_id(self) -> str:
        """Nine letters and digits, which Mistral's templates insist on."""
        return "".join(random.choices(_ID_CHARACTERS, k=9))


class MistralNamed(Mistral):
    """`[TOOL_CALLS]add[ARGS]{"a": 1}`, once for each call: tokenizers with a token for `[ARGS]`."""

    opening, separator, closing = "", "", ""

    def call(self, lark: Lark, name: str, schema: Mapping[str, Any]) -> str:
        """One call with its marks."""
        return f"{lark.text(f'{_MARK}{name}[ARGS]')} {lark.json(schema)}"


def _calls(source: Source, calls: Calls) -> Parsing[bool]:
    start = source.at
    yield from source.skip()
    if (yield from source.peek()) in ("[", "{") and (yield from json_calls(source, calls, stops=_STOPS)):
        return True
    name = yield from source.run(NAME)
    call_id = None
    if (yield from source.match("[CALL_ID]")):
        call_id = yield from source.run(_CALL_ID)
    marked = yield from source.match("[ARGS]")
    # Without the mark, text after a word counts as its arguments only if it looks like them.
    looks_so = marked or (yield from source.comes("{", " {", "\n{"))
    if looks_so and (yield from named_call(source, calls, name, call_id, stops=_STOPS)):
        return True
    source.back(start)
    return False
