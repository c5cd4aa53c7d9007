"""Hermes and Qwen: JSON objects between `<tool_call>` tags (chat templates of Hermes-2-Pro, Qwen2.5, Qwen3)."""

from collections.abc import Mapping
from typing import Any

from jaxllm.serving.reply.calls import Calls, named_object, new_call_id, tagged_calls
from jaxllm.serving.reply.json_calls import json_calls
from jaxllm.serving.reply.lark import Lark
from jaxllm.serving.reply.source import Parsing, Source


class Hermes:
    """`<tool_call>\\n{"name": "add", "arguments": {"a": 1}}\\n</tool_call>`, once for each call."""

    markers = ("<tool_call>", "</tool_call>")
    begins = ("<tool_call>",)
    opening, separator, closing = "", "\n", ""
    forces_reasoning = False
    new_id = staticmethod(new_call_id)

    def parse(self, source: Source, calls: Calls) -> Parsing[None]:
        """Text, and calls between tags."""
        return tagged_calls(
            source, self.begins, lambda _: json_calls(source, calls, stops=self.markers), ("</tool_call>",)
        )

    def call(self, lark: Lark, name: str, schema: Mapping[str, Any]) -> str:
        """One call with its tags."""
        begin, end = lark.text("<tool_call>\n"), lark.text("\n</tool_call>")
        return f"{begin} {named_object(lark, name, schema)} {end}"
