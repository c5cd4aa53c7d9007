"""gpt-oss: messages in channels (OpenAI's harmony response format, https://cookbook.openai.com/articles/openai-harmony).

One format for reasoning and calls: they are messages of different channels.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any

from jaxllm.serving.reply.calls import Calls, new_call_id
from jaxllm.serving.reply.json_text import json_text
from jaxllm.serving.reply.lark import FREE_TEXT, Lark
from jaxllm.serving.reply.parts import ContentDelta, ReasoningDelta, ReplyPart
from jaxllm.serving.reply.source import Parsing, Source, behind

_START, _CHANNEL, _CONSTRAIN, _MESSAGE = "<|start|>", "<|channel|>", "<|constrain|>", "<|message|>"
_ENDS = ("<|end|>", "<|call|>", "<|return|>")
_HEAD_BEGINS = (_START, _CHANNEL, " to=")
_CHANNEL_NAME = re.compile(r"<\|channel\|>\s*(\w+)")
_RECIPIENT = re.compile(r"to=(functions\.)?([\w.\-]+)")


class Harmony:
    """`<|channel|>analysis<|message|>...<|end|><|start|>assistant<|channel|>final<|message|>...`."""

    markers = (_START, _CHANNEL, _CONSTRAIN, _MESSAGE, *_ENDS)
    start, end = "", f"{_CHANNEL}final{_MESSAGE}"
    sections = ((f"{_CHANNEL}analysis{_MESSAGE}",), (*_ENDS, _START, _CHANNEL))
    forces_reasoning = True
    opening, separator, closing = "", f"<|call|>{_START}assistant", ""
    new_id = staticmethod(new_call_id)

    def begins_inside(self, prompt: str) -> bool | None:
        """The prompt ends before the head of a message: nothing is decided, but reasoning comes first."""
        return True

    def parse(self, source: Source, calls: Calls, *, inside: bool = False) -> Parsing[None]:
        """Read all messages."""
        last: type[ReasoningDelta | ContentDelta] | None = None
        while (yield from source.peek()):
            head = yield from _head(source)
            called = _called(head, calls) if calls.enabled else None
            if called is None:
                make = ReasoningDelta if _is_reasoning(head) else ContentDelta
                yield from _body(source, behind("\n", make) if make is last else make)
                last = make
                continue
            yield calls.start(called)
            yield from _arguments(source, calls)
            last = None

    def call(self, lark: Lark, name: str, schema: Mapping[str, Any]) -> str:
        """A call as a message, perhaps after reasoning."""
        reasoning = lark.rule(
            f"{lark.text(f'{_CHANNEL}analysis{_MESSAGE}')} {lark.rule(FREE_TEXT)} "
            f"{lark.text(f'<|end|>{_START}assistant')}"
        )
        head = lark.text(f"{_CHANNEL}commentary to=functions.{name} {_CONSTRAIN}json{_MESSAGE}")
        return f"{reasoning}? {head} {lark.json(schema)}"


def _called(head: str, calls: Calls) -> str | None:
    """The function that a message calls; the name of one that is known may stand alone."""
    found = _RECIPIENT.search(head)
    return found[2] if found is not None and (found[1] or found[2] in calls.schemas) else None


def _arguments(source: Source, calls: Calls) -> Parsing[None]:
    """Read the message of a call; text after its JSON is omitted."""
    yield from source.skip()
    if not (yield from source.comes("{")):
        if not (yield from _body(source, calls.arguments)):
            yield calls.arguments("{}")
        return
    yield from json_text(source, calls.arguments, (*_ENDS, _START, _CHANNEL))
    yield from source.pass_over((*_ENDS, _START, _CHANNEL))
    yield from source.match(*_ENDS)


def _head(source: Source) -> Parsing[str]:
    """Read the head of a message; empty where text comes without one."""
    start = source.at
    if not (yield from source.match(*_HEAD_BEGINS)):
        return ""
    source.back(start)
    found = yield from source.take_until(_MESSAGE)
    if found is not None:
        return found[0]
    head = source.text[start:]
    if head.startswith((_START, _CHANNEL)):
        # The text ends within the head, which is no part of what the model says.
        source.at = len(source.text)
    return ""


def _is_reasoning(head: str) -> bool:
    """Whether a message is for nobody but the model: its thoughts, and calls of tools that it was not given."""
    channel = _CHANNEL_NAME.search(head)
    return channel is not None and (channel[1] == "analysis" or (" to=" in head and "functions." not in head))


def _body(source: Source, make: Callable[[str], ReplyPart]) -> Parsing[bool]:
    """Read a message up to its end, or the head of the next; returns whether there was text in it."""
    written = False

    def noted(text: str) -> ReplyPart:
        nonlocal written
        written = True
        return make(text)

    source.commit()
    marker, _ = yield from source.until((*_ENDS, _START, _CHANNEL), noted, trim="")
    if marker in (_START, _CHANNEL):
        source.at -= len(marker)
    return written
