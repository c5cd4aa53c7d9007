"""Functions as the first version of OpenAI's interface had them: `functions` and `function_call`.

They are tools with another name; an answer calls one of them. They become tools here, and calls become functions
again.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
from msgspec import UNSET

from jaxllm.errors import RequestError
from jaxllm.serving.openai.protocol.chat import AssistantMessage, ChatCompletionRequest, ChatDelta
from jaxllm.serving.openai.protocol.messages import Tool

ROLE = "function"
"""Who says what a function returned."""
_TOOL = re.compile(r"\btools\[(\d+)\]\.function\b")


def with_tools(body: ChatCompletionRequest) -> ChatCompletionRequest:
    """A request of the first version with its functions as tools. Raises `RequestError` for one that is of both."""
    for name in ("tools", "tool_choice"):
        if getattr(body, name):
            raise RequestError(
                f"{name}: functions and function_call are deprecated names of tools and tool_choice; use only one set",
                name,
            )
    choice: Any = body.function_call
    if isinstance(choice, dict):
        choice = {"type": "function", "function": choice}
    tools = [Tool(function=function) for function in body.functions or ()]
    return msgspec.structs.replace(
        body, functions=None, function_call=None, tools=tools or None, tool_choice=choice, parallel_tool_calls=False
    )


@contextmanager
def naming_functions() -> Iterator[None]:
    """Call tools functions in errors that are raised inside."""
    try:
        yield
    except RequestError as error:
        error.args = (_named(str(error)),)
        error.parameter = None if error.parameter is None else _named(error.parameter)
        raise


def _named(text: str) -> str:
    text = _TOOL.sub(r"functions[\1]", text).replace("tool_choice.function", "function_call")
    return re.sub(r"\btools\b", "functions", text.replace("tool_choice", "function_call"))


def conversation_with_tools(messages: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The messages with calls of functions, and with what they returned, as those of tools."""
    plain, call_id = [], ""
    for index, message in enumerate(messages):
        call = message.get("function_call")
        if call is not None:
            call_id = f"call_{index}"
            rest = {name: value for name, value in message.items() if name != "function_call"}
            plain.append({**rest, "tool_calls": [{"id": call_id, "type": "function", "function": call}]})
        elif message["role"] == ROLE:
            plain.append({**message, "role": "tool", "tool_call_id": call_id})
        else:
            plain.append(message)
    return plain


def message_with_function(message: AssistantMessage) -> AssistantMessage:
    """An answer with its call as one of a function."""
    if not message.tool_calls:
        return message
    return msgspec.structs.replace(message, function_call=message.tool_calls[0].function, tool_calls=UNSET)


def delta_with_function(delta: ChatDelta) -> ChatDelta:
    """News of an answer, likewise."""
    if not delta.tool_calls:
        return delta
    return ChatDelta(function_call=delta.tool_calls[0].function)
