"""Shared by writers of completions: counted tokens, and events whose constant part is encoded once."""

from collections.abc import Callable, Sequence

import msgspec
from msgspec import UNSET

from jaxllm.serving.http.body.base import Answer
from jaxllm.serving.openai.protocol.generation import StreamOptions
from jaxllm.serving.openai.protocol.usage import CompletionTokensDetails, PromptTokensDetails, Usage
from jaxllm.serving.reply.reasoning_count import ReasoningCount
from jaxllm.serving.text.outputs import RequestOutput

_encode = msgspec.json.Encoder().encode

TEXT = "\0the text\0"
"""Stands in a choice where the text goes; no other field can be this."""


class UsageCounter:
    """Adds up what the results of a request's prompts say."""

    def __init__(
        self,
        prompt_lengths: Sequence[int],
        count_reasoning: Callable[[], ReasoningCount] | None = None,
        *,
        is_chat: bool = False,
    ) -> None:
        """`count_reasoning` makes a counter for each answer, where reasoning is told from content.

        Chats tell its tokens in any case: without, there are none.
        """
        self._tells_reasoning = is_chat or count_reasoning is not None
        self._prompt_tokens = sum(prompt_lengths)
        self._cached = [0] * len(prompt_lengths)
        self._completion_tokens = 0
        self._count_reasoning = count_reasoning
        self._reasoning: dict[tuple[int, int], ReasoningCount] = {}

    def add(self, prompt_index: int, output: RequestOutput) -> None:
        """Take a result, or the news, of one prompt."""
        self._cached[prompt_index] = output.num_cached_tokens
        for completion in output.outputs:
            self.add_tokens(prompt_index, completion.index, completion.token_ids)

    def add_tokens(self, prompt_index: int, index: int, token_ids: Sequence[int]) -> None:
        """Take more tokens of one answer to a prompt."""
        self._completion_tokens += len(token_ids)
        if self._count_reasoning is not None:
            self._reasoning_of((prompt_index, index)).push(token_ids)

    def _reasoning_of(self, answer: tuple[int, int]) -> ReasoningCount:
        assert self._count_reasoning is not None
        if answer not in self._reasoning:
            self._reasoning[answer] = self._count_reasoning()
        return self._reasoning[answer]

    @property
    def usage(self) -> Usage:
        """The counts so far."""
        return self._usage(self._completion_tokens, sum(counter.count for counter in self._reasoning.values()))

    @property
    def prompt_usage(self) -> Usage:
        """The counts of the prompts alone."""
        return self._usage(0, 0)

    def _usage(self, completion_tokens: int, reasoning_tokens: int) -> Usage:
        details = CompletionTokensDetails(reasoning_tokens=reasoning_tokens)
        return Usage(
            prompt_tokens=self._prompt_tokens,
            completion_tokens=completion_tokens,
            total_tokens=self._prompt_tokens + completion_tokens,
            prompt_tokens_details=PromptTokensDetails(cached_tokens=sum(self._cached)),
            completion_tokens_details=details if self._tells_reasoning else UNSET,
        )


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
    """The frame of the choice in every event of a stream. Its constant part is encoded once."""

    def __init__(
        self, empty: Answer, counter: UsageCounter, options: StreamOptions | None, *, force_usage: bool
    ) -> None:
        """`empty` is an event with an empty list of choices, its last field, and without usage."""
        head, _, _ = _encode(empty).rpartition(b'"choices":[]')
        self._head = b"data: " + head + b'"choices":['
        self._counter = counter
        self._asked = bool(options and options.include_usage)
        self.continuous = force_usage or (self._asked and bool(options and options.continuous_usage_stats))
        """Whether every event has the usage so far."""
        self._told: Usage | None = None
        self._usage_at_end = self._asked or force_usage

    def event(self, choice: Answer, **extra: object) -> bytes:
        """An event with one choice, and `extra` fields alongside it."""
        if self.continuous:
            if "usage" not in extra:
                extra["usage"] = self._told = self._counter.usage
        elif self._asked:
            extra["usage"] = None
        more = b"," + _encode(extra)[1:] if extra else b"}"
        return self._head + _encode(choice) + b"]" + more + b"\n\n"

    def first(self, choice: Answer, **extra: object) -> bytes:
        """`event` before there is any token of this choice."""
        if self.continuous:
            extra["usage"] = self._told or self._counter.prompt_usage
        return self.event(choice, **extra)

    def text_event(self, choice: Answer) -> TextEvent | None:
        """Events with this choice and different texts; `TEXT` stands for the text. None: they differ in more."""
        if self.continuous:
            return None
        before, _, behind = self.event(choice).rpartition(_encode(TEXT))
        return TextEvent(before, behind)

    def end(self, **extra: object) -> bytes:
        """The event with the usage, if there is to be one, and `extra` fields alongside it."""
        if not self._usage_at_end:
            return b""
        return self._head + b"]," + _encode({"usage": self._counter.usage, **extra})[1:] + b"\n\n"
