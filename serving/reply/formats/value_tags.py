"""Calls with tags around the function's name and around each of its parameters.

Values are plain text. The function's schema says which of them are JSON, or an attribute of the tag does.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from jaxllm.serving.reply.calls import Calls, new_call_id, tagged_calls
from jaxllm.serving.reply.formats.value_tag_calls import ValueTagCall
from jaxllm.serving.reply.lark import Lark, either
from jaxllm.serving.reply.schemas import parameter_schemas, resolved, schema_types
from jaxllm.serving.reply.source import Parsing, Source

_TAG = re.compile(r"<[^<>]*>")
_TEXT = frozenset({"string"})


@dataclass(frozen=True, kw_only=True)
class ValueTags:
    """The tags of a family: `head` name `behind_name`, then `key` name `behind_key` value `behind_value`, then `tail`.

    They stand here without the space that the family writes: `space` is after each of `head`'s end, of values and of
    `behind_name`; what is read may have any.
    """

    head: str
    behind_name: str
    key: str
    behind_key: str
    behind_value: str
    tail: str
    first: tuple[str, ...] = ()
    """Tags that come before `head`, and may be missing; the first begins calls too."""
    last: tuple[str, ...] = ()
    """Tags after calls, which are dropped."""
    opening: str = ""
    separator: str = "\n"
    closing: str = ""
    before: str = ""
    """Written before `head`."""
    after: str = ""
    """Written after `tail`."""
    space: str = "\n"
    padding: str = ""
    """Written around a value, and no part of it."""
    attributes: bool = False
    """Whether names are values of attributes, in quotes."""
    typed: tuple[str, str] | None = None
    """Attributes of the key's tag of a text, and of other values: `{type}` stands for one of `types`."""
    types: Mapping[str, str] = field(default_factory=dict)
    """How the family calls the types of JSON, where it tells them apart."""
    number: tuple[str, str] | None = None
    """Text before and after the call's number, which follows its name; reading skips attributes."""
    words: bool = False
    """Whether words such as `function` may stand between the tags before `head`."""
    cdata: bool = False
    """Whether a value may be between `<![CDATA[` and `]]>`."""
    bare_name: bool = False
    """Whether the name stands in no tag of its own, so that only what follows shows that it is one."""
    tokens: tuple[str, ...] = ()
    """Markers, where they are other than the tags."""
    forces_reasoning: bool = False
    new_id = staticmethod(new_call_id)

    @property
    def begins(self) -> tuple[str, ...]:
        """Tags that may begin a call."""
        return (*(tag for tag in self.first if tag.startswith("<")), *self.heads)

    @cached_property
    def heads(self) -> tuple[str, ...]:
        """The head, and as models write it whose tokenizers lose the spaces in tags."""
        return tuple(dict.fromkeys((self.head, self.head.replace(" ", ""))))

    @cached_property
    def keys(self) -> tuple[str, ...]:
        """The keys of the key's tag."""
        return tuple(dict.fromkeys((self.key, self.key.replace(" ", ""))))

    @property
    def markers(self) -> tuple[str, ...]:
        """Tags that may be tokens: all that nothing is within."""
        every = (*self.first, self.head, self.key, *self.key_ends, self.behind_value, self.tail, *self.last)
        return self.tokens or tuple(dict.fromkeys(tag for tag in every if _TAG.fullmatch(tag)))

    def parse(self, source: Source, calls: Calls) -> Parsing[None]:
        """Text, and calls between tags; the outer tags may be missing."""
        stray = (self.tail, self.behind_value)
        return tagged_calls(
            source, self.begins, lambda tag: ValueTagCall(self, source, calls).read(tag), self.last, stray
        )

    def call(self, lark: Lark, name: str, schema: Mapping[str, Any]) -> str:
        """One call with its tags, and its parameters in the schema's order."""
        required = schema.get("required", ())
        head, behind = f"{self.before}{self.head}{self._quoted(name)}", f"{self.behind_name}{self.space}"
        if self.number is None:
            begin = lark.text(head + behind)
        else:
            begin = f"{lark.text(head + self.number[0])} /[0-9]{{1,4}}/ {lark.text(self.number[1] + behind)}"
        parameters = []
        for key, inner in parameter_schemas(schema).items():
            one = self._parameter(lark, key, inner)
            parameters.append(one if key in required else f"({one})?")
        return " ".join([begin, *parameters, lark.text(self.tail + self.after)])

    def _quoted(self, name: str) -> str:
        return f'"{name}"' if self.attributes else name

    def _parameter(self, lark: Lark, key: str, schema: Mapping[str, Any]) -> str:
        is_text, value = self._value(lark, schema)
        kinds = self._kinds(schema, is_text=is_text)
        begin = either([
            lark.text(f"{self.key}{self._quoted(key)}{kind}{self.behind_key}{self.padding}") for kind in kinds
        ])  # fmt: skip
        return " ".join([begin, value, *([lark.text(self.space)] if self.space else [])])

    def _kinds(self, schema: Mapping[str, Any], *, is_text: bool) -> list[str]:
        """The attributes that may tell the type of a value."""
        if self.typed is None:
            return [""]
        if is_text or not self.types:
            return [self.typed[0 if is_text else 1]]
        known = schema_types(resolved(schema)) - _TEXT or set(self.types)
        return [self.typed[1].format(type=name) for name in sorted({self.types[each] for each in known})]

    def _value(self, lark: Lark, schema: Mapping[str, Any]) -> tuple[bool, str]:
        """Whether a value is text, and the grammar of it and the tag after it."""
        end, schema = f"{self.padding}{self.behind_value}", resolved(schema)
        values = schema.get("enum") or ([schema["const"]] if "const" in schema else None)
        if values:
            texts = [isinstance(value, str) for value in values]
            if any(texts) and (all(texts) or self.typed is None):
                shown = [value if isinstance(value, str) else json.dumps(value) for value in values]
                return True, f"{either([lark.text(value) for value in shown])} {lark.text(end)}"
        elif schema_types(schema) == _TEXT:
            return True, lark.text_until(end, without=self._no_text)
        return False, f"{lark.json(schema)} {lark.text(end)}"

    @property
    def _no_text(self) -> tuple[str, ...]:
        """Texts that end a value other than its own end."""
        return tuple(dict.fromkeys(end for end in self.value_ends if end != self.behind_value))

    @cached_property
    def value_ends(self) -> tuple[str, ...]:
        """Tags that end a value: its own, or another's where that was left out."""
        return tuple(dict.fromkeys((self.behind_value, *self.keys, *self.call_ends)))

    @cached_property
    def call_ends(self) -> tuple[str, ...]:
        """Tags that end a call: its own, or another's."""
        return tuple(dict.fromkeys((self.tail, *self.last, *self.begins)))

    @cached_property
    def key_ends(self) -> list[str]:
        """The tags after a key, without the space between them."""
        return re.findall(r"<[^<>]*>|[^<\s]+", self.behind_key)
