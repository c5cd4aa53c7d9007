"""Reasoning between tags, at the beginning of a reply."""

from collections.abc import Callable

from jaxllm.serving.reply.calls import Calls
from jaxllm.serving.reply.parts import ContentDelta, ReasoningDelta
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
        calls: tuple[str, ...] = (),
        around: tuple[str, ...] = (),
        tokens: tuple[str, ...] = (),
    ) -> None:
        """Several `starts` or `ends` mean the same. `always`: the model reasons even without the first tag.

        `offered`: whether a prompt that does not begin the reasoning leaves it to the model. `calls` begin calls of
        tools and so end the reasoning. `around` are tags around the answer, which are dropped. `tokens` are markers
        where they are other than these tags.
        """
        self.markers = tokens or (*starts, *ends, *around)
        self.sections = (starts, (*ends, *calls))
        self.start, self.end = starts[0], ends[0]
        self._starts, self._ends = starts, ends
        self._always = always
        self._offered = offered
        self._calls = calls
        self._around = around

    def begins_inside(self, prompt: str) -> bool | None:
        """By the last tag at the end of the prompt, if there is one."""
        text = prompt.rstrip()
        if text.endswith(self._starts):
            return True
        if text.endswith((*self._ends, *self._around)):
            return False
        if self._always:
            return True
        return None if self._offered(prompt) else False

    def parse(self, source: Source, calls: Calls, *, inside: bool) -> Parsing[None]:
        """Read the reasoning and the space around it."""
        source.dropped = self._around
        start = source.at
        yield from source.skip()
        begins = yield from source.match(*self._starts)
        if begins is None and not inside:
            source.at = start
            return
        yield from source.skip()
        source.commit()
        openings = tuple(tag for tag in calls.openings if tag not in self._ends)
        marker, space = yield from source.until((*self._ends, *openings), ReasoningDelta)
        while marker in openings:
            source.at -= len(marker)
            if calls.begun is not None and (yield from calls.begun(source, self._ends)):
                return
            # It speaks of calls.
            source.at += len(marker)
            yield ReasoningDelta(space + marker)
            marker, space = yield from source.until((*self._ends, *openings), ReasoningDelta)
        yield from source.skip()
        source.commit()


class AppendThink(Thinking):
    """Reasoning that stays in the answer, with its tags: MiniMax-M2 (vLLM's `minimax_m2_append_think`)."""

    def __init__(self) -> None:
        super().__init__(("<think>",), ("</think>",), always=True)

    def parse(self, source: Source, calls: Calls, *, inside: bool) -> Parsing[None]:
        """Write the tag that the prompt has begun the reply with."""
        if inside:
            yield ContentDelta("<think>")
        yield from source.peek()


def think(*, always: bool = False, calls: tuple[str, ...] = (), around: tuple[str, ...] = ()) -> Thinking:
    """`<think>...</think>`: DeepSeek-R1 (`always`), Qwen3 and many others (their chat templates)."""
    return Thinking(("<think>",), ("</think>",), always=always, calls=calls, around=around)


def think_always() -> Thinking:
    """As `think`, for models whose first tag may be missing."""
    return think(always=True)


def glm45() -> Thinking:
    """GLM 4.5 and later, Ling 3: a call may come without the end of the reasoning."""
    return think(calls=("<tool_call>",))


def kimi_k2() -> Thinking:
    """Kimi-K2-Thinking."""
    return think(calls=("<|tool_calls_section_begin|>",))


def deepseek_v4() -> Thinking:
    """DeepSeek V4."""
    return think(calls=("<｜DSML｜tool_calls>",))  # noqa: RUF001  (written with a wide bar)


def deepseek_v41() -> Thinking:
    """DeepSeek V4.1."""
    return think(calls=("<｜DSML｜ calls>",))  # noqa: RUF001


def hunyuan_a13b() -> Thinking:
    """Hunyuan-A13B: the answer is between `<answer>` tags."""
    return think(around=("<answer>", "</answer>"))


def ernie45() -> Thinking:
    """ERNIE 4.5 Thinking: the answer is between `<response>` tags."""
    return think(always=True, around=("<response>", "</response>"))


def minimax_m3() -> Thinking:
    """`<mm:think>...</mm:think>`: MiniMax-M3."""
    return Thinking(("<mm:think>",), ("</mm:think>",))


def seed_oss() -> Thinking:
    """`<seed:think>...</seed:think>`: Seed-OSS."""
    return Thinking(("<seed:think>",), ("</seed:think>",))


def cohere() -> Thinking:
    """Command A Reasoning: reasoning and answer each between tokens (its chat template)."""
    around = ("<|START_RESPONSE|>", "<|END_RESPONSE|>", "<|START_TEXT|>", "<|END_TEXT|>")
    return Thinking(("<|START_THINKING|>",), ("<|END_THINKING|>",), calls=("<|START_ACTION|>",), around=around)


def gemma4() -> Thinking:
    """`<|channel>thought\\n...<channel|>`: Gemma 4."""
    starts, tokens = ("<|channel>thought", "<|channel>"), ("<|channel>", "<channel|>")
    return Thinking(starts, ("<channel|>",), calls=("<|tool_call>",), tokens=tokens)


def k2_horizon() -> Thinking:
    """K2 Horizon: three pairs of tags, for three efforts."""
    kinds = ("think", "think_fast", "think_faster")
    starts, ends = tuple(f"<ifm|{kind}>" for kind in kinds), tuple(f"</ifm|{kind}>" for kind in kinds)
    return Thinking(starts, ends, always=True, calls=("<ifm|tool_calls>",))


def plamo3() -> Thinking:
    """PLaMo 3."""
    return Thinking(
        ("<|plamo:begin_think:plamo|>",), ("<|plamo:end_think:plamo|>",), always=True,
        calls=("<|plamo:begin_tool_requests:plamo|>",), tokens=("<|plamo:begin_", "<|plamo:end_", ":plamo|>"),
    )  # fmt: skip


def mistral() -> Thinking:
    """`[THINK]...[/THINK]`: Magistral; its system prompt shows these tags, and without it the model does not reason."""
    return Thinking(("[THINK]",), ("[/THINK]",), offered=lambda prompt: "[THINK]" in prompt)


def granite() -> Thinking:
    """IBM Granite 3.2 and 3.3: sentences instead of tags, which the chat template asks for with `thinking=true`."""
    starts = ("Here is my thought process:", "Here's my thought process:")
    ends = ("Here is my response:", "Here's my response:")
    return Thinking(starts, ends, offered=lambda prompt: "thought process" in prompt)


def kimi_k3() -> Thinking:
    """Kimi K3: reasoning, answer and calls each in a channel, whose markers are three tokens with a name."""
    around = ("<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>")
    return Thinking(
        ("<|open|>think<|sep|>",), ("<|close|>think<|sep|>",), calls=("<|open|>tools<|sep|>",), around=around,
        tokens=("<|open|>", "<|close|>", "<|sep|>"),
    )  # fmt: skip
