"""The tools of a request: functions, custom tools, and both in namespaces, as functions of a chat."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jaxllm.errors import quoted
from jaxllm.serving.http.body.base import UnsupportedError
from jaxllm.serving.http.body.decode import as_body
from jaxllm.serving.openai.protocol.messages import Function, Tool
from jaxllm.serving.openai.protocol.response_items import TOOL_KINDS, CustomTool, NamespaceTool, ResponseTool
from jaxllm.serving.openai.protocol.responses import ResponsesRequest

INPUT = "input"
"""The one argument of the function that stands for a custom tool."""


@dataclass(frozen=True)
class CallableTool:
    """A tool, and the namespace that it was given in."""

    tool: ResponseTool | CustomTool
    namespace: NamespaceTool | None = None

    @property
    def shown(self) -> str:
        """The name by which the model knows it."""
        return shown_name(self.tool.name, None if self.namespace is None else self.namespace.name)

    def chat_tool(self) -> Tool:
        """The function of a chat that it is."""
        tool = self.tool
        texts = [None if self.namespace is None else self.namespace.description, tool.description]
        if isinstance(tool, ResponseTool):
            parameters, strict = tool.parameters, tool.strict
        else:
            grammar = (tool.format or {}).get("definition")
            texts.append(None if grammar is None else f"The input follows this grammar:\n{grammar}")
            text = {"type": "string"}
            parameters, strict = {"type": "object", "properties": {INPUT: text}, "required": [INPUT]}, None
        description = "\n".join(filter(None, texts)) or None
        function = Function(name=self.shown, description=description, parameters=parameters, strict=strict)
        return Tool(type="function", function=function)


def shown_name(name: str, namespace: str | None) -> str:
    """The name of a tool, with its namespace in front."""
    return name if namespace is None else f"{namespace}.{name}"


def callable_tools(body: ResponsesRequest) -> list[CallableTool]:
    """All tools of a request that may be called. Raises `RequestError` for tools of other types."""
    found: list[CallableTool] = []
    for index, tool in enumerate(body.tools or ()):
        read = _read(tool, f"tools[{index}]")
        if isinstance(read, NamespaceTool):
            found += _namespace_tools(read, f"tools[{index}]")
        else:
            found.append(CallableTool(read))
    return found


def _namespace_tools(namespace: NamespaceTool, path: str) -> Iterator[CallableTool]:
    for index, tool in enumerate(namespace.tools):
        place = f"{path}.tools[{index}]"
        read = _read(tool, place)
        if isinstance(read, NamespaceTool):
            raise UnsupportedError(
                f"{place}.type: a namespace may contain only functions and custom tools", f"{place}.type"
            )
        yield CallableTool(read, namespace)


def _read(tool: dict[str, Any], path: str) -> ResponseTool | CustomTool | NamespaceTool:
    kind = tool.get("type")
    if not isinstance(kind, str) or kind not in TOOL_KINDS:
        known = ", ".join(map(repr, TOOL_KINDS))
        raise UnsupportedError(
            f"{path}.type={quoted(kind)}: only tools of the types {known} are supported; this server runs no built-in "
            "tools",
            f"{path}.type",
        )
    body = as_body(tool, TOOL_KINDS[kind], path)
    assert isinstance(body, ResponseTool | CustomTool | NamespaceTool)
    return body


def custom_input(arguments: str) -> str:
    """The text for a custom tool in the arguments that the model wrote; all of them, where it wrote something else."""
    try:
        found = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    text = found.get(INPUT) if isinstance(found, dict) else None
    return text if isinstance(text, str) else arguments
