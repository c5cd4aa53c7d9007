"""Events of streams of completions: what is the same in all of one stream is encoded once."""

from collections.abc import Sequence

import msgspec

from jaxllm.serving.http.body.base import Answer
from jaxllm.serving.openai.generation.usage import UsageCounter
from jaxllm.serving.openai.protocol.generation import StreamOptions

_encode = msgspec.json.Encoder().encode

TEXT = "\0the text\0"
"""Stands in a choice where the text goes; no other field can be this."""


class TextEvent:
    """An event but for a text in it: most events of a stream are nothing else."""

    __slots__ = ("_before", "_behind")

    def __init__(self, before: bytes, behind: bytes) -> None:
        self._before, self._behind = before, behind

    def event(self, text: str) -> bytes:
        """The event with this text."""
        return self._before + _encode(text) + self._behind


class TextEvents:
    """Events that only bring text to an answer, each but for its text prepared when the answer begins."""

    __slots__ = ("_counter", "_events")

    def __init__(self, counter: UsageCounter) -> None:
        self._counter = counter
        self._events: dict[int, TextEvent] = {}

    def prepare(self, index: int, event: TextEvent | None) -> None:
        """From now on this is the event of the answer of this index. None: it has no such."""
        if event is not None:
            self._events[index] = event

    def write(self, prompt_index: int, index: int, text: str, token_ids: Sequence[int]) -> bytes | None:
        """The event for more text, whose tokens are counted; None where none is prepared."""
        event = self._events.get(index)
        if event is None:
            return None
        self._counter.add_tokens(prompt_index, index, token_ids)
        return event.event(text)


class EventFrame:
    """What surrounds the choice in every event of a stream. Its constant part is encoded once."""

    def __init__(
        self, empty: Answer, counter: UsageCounter, options: StreamOptions | None, *, force_usage: bool
    ) -> None:
        """`empty` is an event without choices and usage, of which the choices are the last field."""
        head, _, _ = _encode(empty).rpartition(b'"choices":[]')
        self._head = b"data: " + head + b'"choices":['
        self._counter = counter
        self._asked = bool(options and options.include_usage)
        self._continuous = force_usage or (self._asked and bool(options and options.continuous_usage_stats))
        self._usage_at_end = self._asked or force_usage

    def event(self, choice: Answer, **extra: object) -> bytes:
        """An event with one choice, and `extra` fields beside it."""
        if self._continuous:
            extra.setdefault("usage", self._counter.usage)
        elif self._asked:
            extra["usage"] = None
        more = b"," + _encode(extra)[1:] if extra else b"}"
        return self._head + _encode(choice) + b"]" + more + b"\n\n"

    def first(self, choice: Answer, **extra: object) -> bytes:
        """`event` before there is any token."""
        if self._continuous:
            extra["usage"] = self._counter.prompt_usage
        return self.event(choice, **extra)

    def text_event(self, choice: Answer) -> TextEvent | None:
        """Events with this choice and different texts, of which `TEXT` stands for one. None: they differ in more."""
        if self._continuous:
            return None
        before, _, behind = self.event(choice).rpartition(_encode(TEXT))
        return TextEvent(before, behind)

    def end(self) -> bytes:
        """The event with the usage, if there is to be one."""
        if not self._usage_at_end:
            return b""
        return self._head + b'],"usage":' + _encode(self._counter.usage) + b"}\n\n"
