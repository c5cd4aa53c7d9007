"""Calls whose name stands between tags of its own, before arguments in JSON."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxllm.serving.reply.calls import Calls, close, new_call_id, tagged_calls
from jaxllm.serving.reply.json_calls import named_call
from jaxllm.serving.reply.lark import Lark
from jaxllm.serving.reply.source import Parsing, Source

_NAME = re.compile(r"[\w.\-:]*")


@dataclass(frozen=True, kw_only=True)
class NamedJson:
    """The tags of a family; space between them is read over."""

    first: tuple[str, ...] = ()
    """May come before `head`, and begin calls too."""
    head: tuple[str, ...]
    """Before the name."""
    behind: tuple[str, ...]
    """Between the name and the arguments."""
    tail: tuple[str, ...]
    """After the arguments."""
    last: tuple[str, ...] = ()
    """After the last call."""
    numbered: bool = False
    """Whether the name is within an id such as `functions.add:0`."""
    tokens: tuple[str, ...] = ()
    """Markers, where they are other than the tags."""
    separator: str = ""
    forces_reasoning: bool = False
    new_id = staticmethod(new_call_id)

    @property
    def markers(self) -> tuple[str, ...]:
        """Tags that may be tokens."""
        return self.tokens or (*self.first, *self.head, *self.behind, *self.tail, *self.last)

    @property
    def begins(self) -> tuple[str, ...]:
        """Tags that begin calls."""
        return (*self.first, self.head[0])

    @property
    def opening(self) -> str:
        """Tags before all calls."""
        return "".join(self.first)

    @property
    def closing(self) -> str:
        """Tags after all calls."""
        return "".join(self.last)

    def parse(self, source: Source, calls: Calls) -> Parsing[None]:
        """Text, and calls between tags; the outer tags may be missing."""
        stray = tuple(tag for tag in (*self.head[1:], *self.tail, *self.behind) if tag.startswith("<"))
        return tagged_calls(source, self.begins, lambda tag: self._call(source, calls, tag), self.last, stray)

    def call(self, lark: Lark, name: str, schema: Mapping[str, Any]) -> str:
        """One call with its tags."""
        head, behind, tail = "".join(self.head), "".join(self.behind), "".join(self.tail)
        if not self.numbered:
            return f"{lark.text(f'{head}{name}{behind}')} {lark.json(schema)} {lark.text(tail)}"
        number = lark.rule("/[0-9]/")
        before = f"{lark.text(f'{head}functions.{name}:')} {number} {lark.text(behind)}"
        return f"{before} {lark.json(schema)} {lark.text(tail)}"

    def _call(self, source: Source, calls: Calls, tag: str) -> Parsing[bool]:
        start = source.at
        while tag in self.first:
            yield from source.skip()
            tag = (yield from source.match(*self.first, self.head[0])) or ""
        written = ""
        if tag and (yield from _read_over(source, self.head[1:])):
            yield from source.skip()
            written = yield from source.run(_NAME)
        name = written.rpartition(":")[0].removeprefix("functions.") if self.numbered and ":" in written else written
        call_id = written if self.numbered and ":" in written else None
        tags = (*self.first, *self.head, *self.behind, *self.tail, *self.last)
        stops = tuple(tag for tag in tags if tag.startswith("<"))
        named = name and ((yield from _read_over(source, self.behind)) or (yield from source.comes(self.tail[-1])))
        if not named or not (yield from named_call(source, calls, name, call_id, stops=stops)):
            source.back(start)
            return False
        for _ in (*self.tail, *self.last):
            yield from close(source, (*self.tail, *self.last))
        return True


def _read_over(source: Source, tags: tuple[str, ...]) -> Parsing[bool]:
    for tag in tags:
        yield from source.skip()
        if not (yield from source.match(tag)):
            return False
    return True


def kimi_k2() -> NamedJson:
    """`<|tool_call_begin|>functions.add:0<|tool_call_argument_begin|>{"a": 1}<|tool_call_end|>`: Kimi K2."""
    return NamedJson(
        first=("<|tool_calls_section_begin|>",), head=("<|tool_call_begin|>",),
        behind=("<|tool_call_argument_begin|>",), tail=("<|tool_call_end|>",), last=("<|tool_calls_section_end|>",),
        numbered=True,
    )  # fmt: skip


def plamo3() -> NamedJson:
    """PLaMo 3: names and arguments between tags such as `<|plamo:begin_tool_name:plamo|>`."""

    def tag(kind: str, name: str) -> str:
        return f"<|plamo:{kind}_{name}:plamo|>"

    return NamedJson(
        first=(tag("begin", "tool_requests"),),
        head=(tag("begin", "tool_request"), tag("begin", "tool_name")),
        behind=(
            tag("end", "tool_name"),
            tag("begin", "tool_arguments"),
            "<|plamo:constrain|>",
            "json",
            "<|plamo:msg|>",
        ),
        tail=(tag("end", "tool_arguments"), tag("end", "tool_request")),
        last=(tag("end", "tool_requests"),),
        tokens=("<|plamo:begin_", "<|plamo:end_", ":plamo|>", "<|plamo:constrain|>", "<|plamo:msg|>"),
    )
