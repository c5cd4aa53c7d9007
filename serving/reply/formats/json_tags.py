"""Calls as objects of JSON between tags, one in each pair or all of them in a list."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jaxllm.serving.reply.calls import Calls, named_object, new_call_id, tagged_calls
from jaxllm.serving.reply.json_calls import CALL_KEYS, CallKeys, json_calls
from jaxllm.serving.reply.lark import Lark
from jaxllm.serving.reply.source import Parsing, Source


@dataclass(frozen=True, kw_only=True)
class JsonTags:
    """The tags of a family."""

    begins: tuple[str, ...]
    """Any of these begins calls."""
    ends: tuple[str, ...] = ()
    """Dropped after them."""
    opening: str = ""
    separator: str = ", "
    closing: str = ""
    before: str = ""
    """Written before each call that is forced."""
    after: str = ""
    """Written after it."""
    keys: CallKeys = CALL_KEYS
    tokens: tuple[str, ...] = ()
    """Markers, where they are other than the tags."""
    before_calls: tuple[str, ...] = ()
    """Calls may come after these, which are no markup."""
    leading: bool = False
    """Whether a reply may begin with calls, without a tag."""
    forces_reasoning: bool = False
    new_id = staticmethod(new_call_id)

    @property
    def markers(self) -> tuple[str, ...]:
        """Tags that may be tokens."""
        return self.tokens or (*self.begins, *self.ends)

    def parse(self, source: Source, calls: Calls) -> Parsing[None]:
        """Text, and calls between tags."""
        if self.leading:
            start = source.at
            yield from source.skip()
            if not (yield from self._calls(source, calls, needs_arguments=True)):
                source.back(start)
        yield from tagged_calls(
            source, self.begins, lambda _: self._calls(source, calls), self.ends, before=self.before_calls
        )

    def _calls(self, source: Source, calls: Calls, *, needs_arguments: bool = False) -> Parsing[bool]:
        tags = (*self.begins, *self.ends)
        stops = tuple(tag for tag in tags if tag[0] in "<[")
        return json_calls(source, calls, self.keys, needs_arguments=needs_arguments, stops=stops, outside=tags)

    def call(self, lark: Lark, name: str, schema: Mapping[str, Any]) -> str:
        """One object, and its tags where it has some of its own."""
        one = named_object(lark, name, schema, self.keys.arguments[0], self.keys.name)
        return " ".join([lark.text(self.before), one, lark.text(self.after)])


def _tagged(begin: str, end: str, space: str = "\n") -> JsonTags:
    """One object between two tags."""
    return JsonTags(begins=(begin,), ends=(end,), separator="\n", before=f"{begin}{space}", after=f"{space}{end}")


def _listed(begin: str, end: str) -> JsonTags:
    """A list between two tags."""
    return JsonTags(begins=(begin,), ends=(end,), opening=f"{begin}[", closing=f"]{end}")


def longcat() -> JsonTags:
    """`<longcat_tool_call>\\n{"name": ..., "arguments": {...}}\\n</longcat_tool_call>`: LongCat-Flash."""
    return _tagged("<longcat_tool_call>", "</longcat_tool_call>")


def granite_20b_fc() -> JsonTags:
    """`<function_call> {"name": ..., "arguments": {...}}`: granite-20b-functioncalling."""
    return JsonTags(begins=("<function_call>",), separator=" ", before="<function_call> ")


def jamba() -> JsonTags:
    """`<tool_calls>[{"name": ..., "arguments": {...}}]</tool_calls>`: Jamba 1.5 and later, Hunyuan-A13B."""
    return _listed("<tool_calls>", "</tool_calls>")


def phi4_mini() -> JsonTags:
    """`functools[{"name": ..., "arguments": {...}}]`, or tokens around the list: Phi-4-mini."""
    begin, end = "<|tool_call|>", "<|/tool_call|>"
    return JsonTags(
        begins=("functools", begin), ends=(end,), opening="functools[", closing="]", tokens=("functools", begin, end)
    )


def internlm() -> JsonTags:
    """`<|action_start|><|plugin|>\\n{"name": ..., "parameters": {...}}<|action_end|>`: InternLM2 and later."""
    return JsonTags(
        begins=("<|action_start|><|plugin|>", "<|action_start|> <|plugin|>"), ends=("<|action_end|>",), separator="\n",
        before="<|action_start|><|plugin|>\n", after="<|action_end|>",
        keys=CallKeys(arguments=("parameters", "arguments")),
        tokens=("<|action_start|>", "<|plugin|>", "<|action_end|>"),
    )  # fmt: skip


def gigachat3() -> JsonTags:
    """`<|function_call|>{"name": ..., "arguments": {...}}`: GigaChat 3."""
    return JsonTags(
        begins=("<|function_call|>", "<|message_sep|>function call<|role_sep|>", "function call<|role_sep|>"),
        separator="\n", before="<|function_call|>", tokens=("<|function_call|>", "<|message_sep|>", "<|role_sep|>"),
    )  # fmt: skip


def cohere() -> JsonTags:
    """`<|START_ACTION|>[{"tool_call_id": "0", "tool_name": ..., "parameters": {...}}]<|END_ACTION|>`: Command A."""
    return JsonTags(
        begins=("<|START_ACTION|>",), ends=("<|END_ACTION|>",), opening="<|START_ACTION|>[", closing="]<|END_ACTION|>",
        keys=CallKeys("tool_name", ("parameters", "arguments"), "tool_call_id"),
    )  # fmt: skip


def xlam() -> JsonTags:
    """`[{"name": ..., "arguments": {...}}]` as the reply, or in one of several kinds of tags: xLAM."""
    return JsonTags(
        begins=("[TOOL_CALLS]", "<tool_call>", "```json"), before_calls=("</think>",), ends=("</tool_call>", "```"),
        opening="[", closing="]", tokens=("<tool_call>", "</tool_call>", "[TOOL_CALLS]"), leading=True,
    )  # fmt: skip
