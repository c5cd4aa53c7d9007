"""Calls as Python writes them: Llama 3.2 and 4 (Meta's prompt formats), and others."""

from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any

from jaxllm.serving.reply.calls import NAME, Calls, new_call_id, tagged_calls
from jaxllm.serving.reply.lark import Lark, parameter_list
from jaxllm.serving.reply.nesting import Nesting
from jaxllm.serving.reply.python_values import python_arguments
from jaxllm.serving.reply.schemas import parameter_schemas
from jaxllm.serving.reply.source import Parsing, Source, marker_searches


@dataclass(frozen=True, kw_only=True)
class Pythonic:
    """`[add(a=1), get_weather(place="Oak")]` is the reply, or stands between two marks."""

    begin: str = "<|python_start|>"
    end: str = "<|python_end|>"
    opening: str = "["
    separator: str = ", "
    closing: str = "]"
    leading: bool = True
    """Whether a reply may begin with calls of any function, without the mark; of those that are known it may always."""
    bracket: str = "["
    """Text before the first call; empty if calls have lines of their own."""
    forces_reasoning: bool = False
    new_id = staticmethod(new_call_id)

    @property
    def markers(self) -> tuple[str, ...]:
        """The marks."""
        return (self.begin, self.end)

    @property
    def begins(self) -> tuple[str, ...]:
        """Tags that begin calls."""
        return (self.begin,)

    def parse(self, source: Source, calls: Calls) -> Parsing[None]:
        """A list of calls at the beginning or after the mark; everything else is content."""
        start = source.at
        yield from source.skip()
        if (yield from _list(source, calls, self, leading=True)):
            yield from source.skip()
            yield from source.match(self.end)
            yield from source.skip()
        else:
            source.back(start)
        yield from tagged_calls(source, self.begins, lambda _: _list(source, calls, self), (self.end,))

    def call(self, lark: Lark, name: str, schema: Mapping[str, Any]) -> str:
        """One call with its parameters in the schema's order; values are written as JSON."""
        schemas = parameter_schemas(schema)
        expressions = {key: f"{lark.text(f'{key}=')} {lark.json(each)}" for key, each in schemas.items()}
        listed = parameter_list(lark, expressions, schema.get("required", ()), ", ")
        return f"{lark.text(f'{name}(')} {listed} {lark.text(')')}"


def lfm2() -> Pythonic:
    """`<|tool_call_start|>[add(a=1)]<|tool_call_end|>`: LFM2 (its chat template)."""
    begin, end = "<|tool_call_start|>", "<|tool_call_end|>"
    return Pythonic(begin=begin, end=end, opening=f"{begin}[", closing=f"]{end}", leading=False)


def olmo3() -> Pythonic:
    """`<function_calls>\\nadd(a=1)\\n</function_calls>`, each call in a line: OLMo 3 (its chat template)."""
    begin, end = "<function_calls>", "</function_calls>"
    return Pythonic(begin=begin, end=end, opening=begin, separator="\n", closing=end, leading=False, bracket="")


def _list(source: Source, calls: Calls, style: Pythonic, *, leading: bool = False) -> Parsing[bool]:
    """Read a list of calls; each is handed out when it is complete. False: the first is none."""
    begin, bracket = source.at, style.bracket
    known = calls.schemas if leading and not style.leading else None
    yield from source.skip()
    if not (yield from source.match("[")) and bracket:
        source.back(begin)
        return False
    first = True
    while True:
        start = source.at
        yield from source.skip()
        found = yield from _call(source, (style.end, style.begin), known)
        if found is None:
            source.back(begin if first else start)
            return not first
        first = False
        yield calls.start(found[0])
        yield calls.arguments(found[1])
        source.commit()
        yield from source.skip()
        if (yield from _joint(source)) == "]":
            return True


def _joint(source: Source) -> Parsing[str | None]:
    """Read over what joins calls, or ends their list."""
    joint = yield from source.match(",", ";", "]")
    if joint in (",", ";"):
        yield from source.skip()
        return (yield from source.match("]")) or joint
    return joint


def _call(source: Source, ends: tuple[str, ...], known: Container[str] | None) -> Parsing[tuple[str, str] | None]:
    """Read one call: its name, and its arguments as JSON. None, and anything may have been read: this is none.

    Markup ends it although it was not closed. `known`: it must be of one of these functions.
    """
    name = yield from source.run(NAME)
    if not name or (known is not None and name not in known) or (yield from source.peek()) != "(":
        return None
    search, search_begun = marker_searches(ends)
    nesting, pieces, start, searched = Nesting("\"'"), list[str](), source.at + 1, source.at
    while True:
        found = search(source.text, searched)
        begun = search_begun(source.text, source.at) if found is None else found
        limit = len(source.text) if begun is None else begun.start()
        source.at, end = nesting.scan(source.text, source.at, stops=",", limit=limit)
        if end:
            pieces.append(source.text[start : source.at - 1])
            start = source.at
        if end == ")":
            break
        if end:
            continue
        if found is not None and not nesting.quoted:
            pieces.append(source.text[start : source.at].rstrip(" \t\r\n)]}"))
            break
        searched = max(searched, limit) if found is None else found.end()
        if found is None and not (yield from source.more()):
            return None
    arguments = python_arguments(pieces)
    return None if arguments is None else (name, arguments)
