"""Parts of replies as messages and deltas of chat completions."""

from collections.abc import Callable

from msgspec import UNSET

from jaxllm.serving.openai.chat.functions import delta_with_function, message_with_function
from jaxllm.serving.openai.protocol.chat import (
    AssistantMessage,
    CalledFunctionAnswer,
    ChatDelta,
    FunctionDelta,
    ToolCallAnswer,
    ToolCallDelta,
)
from jaxllm.serving.reply import parts as reply
from jaxllm.serving.reply.json_values import is_object
from jaxllm.serving.text.outputs import CompletionOutput


class Answers:
    """Reads the answers to one request, each with a parser of its own."""

    def __init__(
        self, new_parser: Callable[[], reply.ReplyParser], *, named_call: bool = False, functions: bool = False
    ) -> None:
        """`named_call`: the request names the function; such answers end with `stop`, as with OpenAI.

        `functions`: it has functions instead of tools, so that calls are written in the older form.
        """
        self._new_parser = new_parser
        self._named_call = named_call
        self._functions = functions
        self._parsers: dict[int, reply.ReplyParser] = {}
        self._arguments: dict[int, list[str]] = {}
        """The arguments of the last call of each answer that calls, in pieces."""

    def deltas(self, completion: CompletionOutput) -> list[ChatDelta]:
        """The deltas of an answer's news, one for each part."""
        index = completion.index
        parser = self._parsers.get(index)
        if parser is None:
            parser = self._parsers[index] = self._new_parser()
        parts = parser.push(completion.text)
        if completion.finish_reason is not None:
            parts += parser.finish()
        for part in parts:
            if isinstance(part, reply.ToolCallStart):
                self._arguments[index] = []
            elif isinstance(part, reply.ToolCallArguments):
                self._arguments[index].append(part.arguments)
        deltas = [_delta(part) for part in parts]
        return [delta_with_function(delta) for delta in deltas] if self._functions else deltas

    def message(self, completion: CompletionOutput, role: str, begin: str = "") -> AssistantMessage:
        """A whole answer; `begin` comes before its content."""
        whole = reply.read_whole(self._new_parser(), completion.text)
        if whole.tool_calls:
            self._arguments[completion.index] = [whole.tool_calls[-1].arguments]
        content = begin + (whole.content or "")
        silent = whole.content is None and bool(whole.tool_calls or whole.reasoning)
        message = AssistantMessage(
            role=role,
            content=None if silent and not begin else content,
            reasoning=whole.reasoning,
            reasoning_content=whole.reasoning,
            tool_calls=[_call(call) for call in whole.tool_calls] or UNSET,
        )
        return message_with_function(message) if self._functions else message

    def finish_reason(self, completion: CompletionOutput) -> str | None:
        """Why an answer ended, once its news have been read.

        A call in which a stop string or token came is not whole, and so no reason to run it.
        """
        arguments = self._arguments.get(completion.index)
        if completion.finish_reason != "stop" or arguments is None or self._named_call:
            return completion.finish_reason
        if completion.stop_reason is not None and not is_object("".join(arguments)):
            return "stop"
        return "function_call" if self._functions else "tool_calls"


def _call(call: reply.FunctionCall) -> ToolCallAnswer:
    return ToolCallAnswer(id=call.id, function=CalledFunctionAnswer(name=call.name, arguments=call.arguments))


def _delta(part: reply.ReplyPart) -> ChatDelta:
    match part:
        case reply.ContentDelta(text):
            return ChatDelta(content=text)
        case reply.ReasoningDelta(text):
            return ChatDelta(reasoning=text, reasoning_content=text)
        case reply.ToolCallStart(index, call_id, name):
            function = FunctionDelta(name=name, arguments="")
            return ChatDelta(tool_calls=(ToolCallDelta(index=index, id=call_id, type="function", function=function),))
        case reply.ToolCallArguments(index, arguments):
            return ChatDelta(tool_calls=(ToolCallDelta(index=index, function=FunctionDelta(arguments=arguments)),))
