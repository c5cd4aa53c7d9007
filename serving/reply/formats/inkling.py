"""Inkling: blocks of text, of reasoning and of calls, each between two tokens (vLLM's parser of this name).

One format for reasoning and calls: they are blocks of different kinds.
"""

from collections.abc import Callable, Mapping
from typing import Any

from jaxllm.serving.reply.calls import NAME, Calls, named_object, new_call_id
from jaxllm.serving.reply.json_calls import CallKeys, json_calls
from jaxllm.serving.reply.lark import FREE_TEXT, Lark
from jaxllm.serving.reply.parts import ContentDelta, ReasoningDelta, ReplyPart
from jaxllm.serving.reply.source import Parsing, Source, behind

_MESSAGE, _TEXT, _THINKING = "<|message_model|>", "<|content_text|>", "<|content_thinking|>"
_CALL = "<|content_invoke_tool_json|>"
_KINDS = (_TEXT, _THINKING, _CALL, "<|content_invoke_tool_text|>", "<|content_tool_error|>")
_ENDS = ("<|end_message|>", "<|content_model_end_sampling|>")
_KEYS = CallKeys(arguments=("args",))


class Inkling:
    """`<|message_model|><|content_thinking|>...<|end_message|><|message_model|><|content_text|>...`."""

    markers = (_MESSAGE, *_KINDS, *_ENDS)
    start, end = "", _TEXT
    sections = ((_THINKING,), (*_ENDS, _MESSAGE, *(kind for kind in _KINDS if kind != _THINKING)))
    forces_reasoning = True
    opening, separator, closing = "", f"{_ENDS[0]}{_MESSAGE}", ""
    new_id = staticmethod(new_call_id)

    def begins_inside(self, prompt: str) -> bool | None:
        """The prompt ends before the kind of a block: nothing is decided, but reasoning comes first."""
        return True

    def parse(self, source: Source, calls: Calls, *, inside: bool = False) -> Parsing[None]:
        """Read all blocks."""
        last: type[ReasoningDelta | ContentDelta] | None = None
        while (yield from source.peek()):
            kind = yield from _head(source)
            if kind == _CALL and calls.enabled and (yield from json_calls(source, calls, _KEYS, stops=self.markers)):
                yield from source.skip()
                yield from source.match(*_ENDS)
                source.commit()
                last = None
                continue
            make = ReasoningDelta if kind == _THINKING else ContentDelta
            yield from _body(source, behind("\n", make) if make is last else make)
            last = make

    def call(self, lark: Lark, name: str, schema: Mapping[str, Any]) -> str:
        """A call as a block, perhaps after reasoning."""
        reasoning = lark.rule(f"{lark.text(_THINKING)} {lark.rule(FREE_TEXT)} {lark.text(f'{_ENDS[0]}{_MESSAGE}')}")
        return f"{reasoning}? {lark.text(_CALL)} {named_object(lark, name, schema, 'args')}"


def _head(source: Source) -> Parsing[str | None]:
    """Read what begins a block, and perhaps a function's name within; returns its kind, None where there is none."""
    while (yield from source.match(_MESSAGE)):
        pass
    start = source.at
    yield from source.run(NAME)
    kind = yield from source.match(*_KINDS)
    if kind is None:
        source.back(start)
    return kind


def _body(source: Source, make: Callable[[str], ReplyPart]) -> Parsing[None]:
    """Read a block up to its end, or the beginning of the next."""
    source.commit()
    marker, _ = yield from source.until((*_ENDS, _MESSAGE, *_KINDS), make, trim="")
    if marker is not None and marker not in _ENDS:
        source.at -= len(marker)
