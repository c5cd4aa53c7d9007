"""Parsers and grammars from formats."""

from collections.abc import Callable, Mapping
from typing import Any

from jaxllm.serving.reply.calls import Calls, Schemas, marked_text, new_call_id
from jaxllm.serving.reply.formats.base import ReasoningFormat, ToolFormat
from jaxllm.serving.reply.lark import FREE_TEXT, Lark, either
from jaxllm.serving.reply.parts import (
    ContentDelta,
    PlainParser,
    ReasoningDelta,
    ReplyParser,
    ToolCallArguments,
    ToolCallStart,
)
from jaxllm.serving.reply.source import Parsing, Source, SourceParser

_NEWLINES = r"/\n{0,2}/"


def make_parser(
    tools: ToolFormat | None = None,
    reasoning: ReasoningFormat | None = None,
    *,
    schemas: Schemas | None = None,
    inside: bool = False,
    most_calls: int | None = None,
    include_reasoning: bool = True,
    include_content: bool = True,
    new_id: Callable[[], str] | None = None,
) -> ReplyParser:
    """A parser for one reply of a model that writes calls and reasons in these formats; None: it does not.

    `schemas` are of the parameters of the functions that the model was shown. `inside`: the prompt has begun the
    reasoning. Calls beyond `most_calls` are left out, and reasoning and content unless they are to be included: where a
    call is forced, content is the markup of one that was cut short. `new_id` makes ids for calls; by default it is the
    format's.
    """
    if tools is None and reasoning is None:
        return PlainParser()
    ids = new_id or (new_call_id if tools is None else tools.new_id)
    calls = Calls(schemas or {}, ids, enabled=tools is not None)
    if tools is not None:
        calls.openings = tuple(getattr(tools, "begins", ()))
        calls.begun = lambda source, ends: _calls_begin(source, tools.parse(source, calls), ends)
    left_out = (ReasoningDelta,) * (not include_reasoning) + (ContentDelta,) * (not include_content)

    tokens = {marker for each in (tools, reasoning) if each is not None for marker in each.markers}

    def parse(source: Source) -> Parsing[None]:
        source.tokens = tuple(tokens)
        if reasoning is not None:
            yield from reasoning.parse(source, calls, inside=inside)
        if tools is not None:
            yield from tools.parse(source, calls)
        elif source.dropped:
            yield from marked_text(source)
        else:
            yield from source.until((), ContentDelta, trim="")

    def wanted(source: Source) -> Parsing[None]:
        for part in parse(source):
            index = part.index if isinstance(part, (ToolCallStart, ToolCallArguments)) else -1
            if (most_calls is None or index < most_calls) and not isinstance(part, left_out):
                yield part

    # Each part costs one generator less where all are wanted.
    return SourceParser(parse if most_calls is None and not left_out else wanted)


def _calls_begin(source: Source, parsing: Parsing[None], ends: tuple[str, ...]) -> Parsing[bool]:
    """Read all the rest with a tool's format if a call begins here; False, and nothing is read: there is none.

    `ends` are of the reasoning that the call ends; they are markup from then on.
    """
    start, source.held = source.at, True
    for part in parsing:
        if part is not None and not isinstance(part, ToolCallStart):
            break
        yield part
        if part is not None:
            source.held = False
            source.dropped = (*source.dropped, *ends)
            yield from parsing
            return True
    source.held = False
    source.back(start)
    return False


def preserved_tokens(token_ids: Mapping[str, int], *formats: ToolFormat | ReasoningFormat | None) -> frozenset[int]:
    """The added tokens, of those given by their texts, that must stay in the text for parsers of these formats."""
    markers = {marker for each in formats if each is not None for marker in each.markers}
    return frozenset(token_ids[marker] for marker in markers if marker in token_ids)


def calls_grammar(
    format_: ToolFormat,
    token_ids: Mapping[str, int],
    functions: Mapping[str, tuple[Mapping[str, Any] | None, bool]],
    *,
    several: bool = True,
    optional: bool = False,
    reasoning: ReasoningFormat | None = None,
    instead: Mapping[str, Any] | None = None,
) -> str | None:
    """A grammar (Lark) of output that calls functions in a format; what it allows, the format's parser reads.

    `functions` are the schemas of their parameters, and whether they are strict: keywords that cannot be enforced are
    then errors. `token_ids` are of the tokenizer's added tokens. `several`: one call or more, not exactly one.
    `optional`: text may come before calls or instead of them; None: this format cannot say where calls begin.
    `instead`: what may come instead of optional calls is JSON that is valid by this schema. `reasoning`: the model may
    reason in this format first.
    """
    markers = {*format_.markers, *(reasoning.markers if reasoning is not None else ())}
    if optional and format_.forces_reasoning:
        # Its text stands in messages too, whose grammar would be the model's whole language.
        return None
    lark = Lark({marker: token_ids[marker] for marker in markers if marker in token_ids})
    calls = [
        format_.call(lark, name, parameters_schema(schema, strict=strict))
        for name, (schema, strict) in functions.items()
    ]
    call = lark.rule(either([lark.rule(each) for each in calls]))
    opening, separator, closing = (lark.text(text) for text in (format_.opening, format_.separator, format_.closing))
    more = f"({separator} {call})*" if several else ""
    whole = f"{opening} {call} {more} {closing}"
    if optional and instead is not None:
        whole = either([whole, lark.json(instead)])
    elif optional:
        if not all(lark.begins_with_token(each) for each in ([opening] if format_.opening else calls)):
            return None
        whole = f"{lark.rule(FREE_TEXT)} ({whole})?"
    if reasoning is not None and reasoning.start and not format_.forces_reasoning:
        thoughts = f"{lark.text(reasoning.start)} {lark.text_until(reasoning.end)} {lark.rule(_NEWLINES)}"
        whole = f"({lark.rule(thoughts)})? {whole}"
    return lark.grammar(whole)


def parameters_schema(schema: Mapping[str, Any] | None, *, strict: bool) -> dict[str, Any]:
    """The schema by which the arguments of a forced call are written: an object, with no properties but the named.

    Whatever is valid by it is valid by `schema`.
    """
    plain: dict[str, Any] = {"type": "object", **(schema or {})}
    if not any(name in plain for name in ("$ref", "anyOf", "oneOf", "allOf", "patternProperties")):
        plain.setdefault("additionalProperties", False)
    plain["x-guidance"] = {"lenient": not strict}
    return plain
