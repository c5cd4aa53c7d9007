"""IBM Granite 3: a list of JSON objects after `<|tool_call|>` (chat templates of granite-3.0 to 3.3).

Granite 4 writes calls as Hermes does.
"""

from collections.abc import Mapping
from typing import Any

from jaxllm.serving.reply.calls import Calls, named_object, new_call_id, tagged_calls
from jaxllm.serving.reply.json_calls import json_calls
from jaxllm.serving.reply.lark import Lark
from jaxllm.serving.reply.source import Parsing, Source


class Granite:
    """`<|tool_call|>[{"name": "add", "arguments": {"a": 1}}]`; before 3.2 the tag is `<tool_call>`."""

    markers = begins = ("<|tool_call|>", "<tool_call>")
    opening, separator, closing = "<|tool_call|>[", ", ", "]"
    forces_reasoning = False
    new_id = staticmethod(new_call_id)

    def parse(self, source: Source, calls: Calls) -> Parsing[None]:
        """Text, and a list of calls after a tag."""
        return tagged_calls(source, self.markers, lambda _: json_calls(source, calls, stops=self.markers))

    def call(self, lark: Lark, name: str, schema: Mapping[str, Any]) -> str:
        """One object of the list."""
        return named_object(lark, name, schema)
