"""Reasoning between tags, at the beginning of a reply."""

from collections.abc import Callable

from jaxllm.serving.reply.calls import Calls
from jaxllm.serving.reply.parts import ReasoningDelta
from jaxllm.serving.reply.source import Parsing, Source


class Thinking:
    """Reasoning from a tag, which the prompt may have written, to another."""

    def __init__(
        self,
        starts: tuple[str, ...],
        ends: tuple[str, ...],
        *,
        always: bool = False,
        offered: Callable[[str], bool] = lambda prompt: True,
    ) -> None:
        """Several `starts` or `ends` mean the same. `always`: the model reasons even without the first tag.

        `offered`: whether a prompt that does not begin the reasoning leaves it to the model.
        """
        self.markers = (*starts, *ends)
        self.sections = (starts, ends)
        self.start, self.end = starts[0], ends[0]
        self._starts, self._ends = starts, ends
        self._always = always
        self._offered = offered

    def begins_inside(self, prompt: str) -> bool | None:
        """By the last tag at the end of the prompt, if there is one."""
        text = prompt.rstrip()
        if text.endswith(self._starts):
            return True
        if text.endswith(self._ends):
            return False
        if self._always:
            return True
        return None if self._offered(prompt) else False

    def parse(self, source: Source, calls: Calls, *, inside: bool) -> Parsing[None]:
        """Read the reasoning and the space around it."""
        start = source.at
        yield from source.skip()
        begins = yield from source.match(*self._starts)
        if begins is None and not inside:
            source.at = start
            return
        yield from source.skip()
        source.commit()
        yield from source.until(self._ends, ReasoningDelta)
        yield from source.skip()
        source.commit()


def think(*, always: bool = False) -> Thinking:
    """`<think>...</think>`: DeepSeek-R1 (`always`), Qwen3 and many others (their chat templates)."""
    return Thinking(("<think>",), ("</think>",), always=always)


def mistral() -> Thinking:
    """`[THINK]...[/THINK]`: Magistral; its system prompt shows these tags, and without it the model does not reason."""
    return Thinking(("[THINK]",), ("[/THINK]",), offered=lambda prompt: "[THINK]" in prompt)


def granite() -> Thinking:
    """IBM Granite 3.2 and 3.3: sentences instead of tags, which the chat template asks for with `thinking=true`."""
    starts = ("Here is my thought process:", "Here's my thought process:")
    ends = ("Here is my response:", "Here's my response:")
    return Thinking(starts, ends, offered=lambda prompt: "thought process" in prompt)
