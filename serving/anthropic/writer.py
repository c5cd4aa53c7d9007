"""Results as a message of Anthropic's, whole or as events."""

import json
from collections.abc import Sequence
from typing import Any

import msgspec

from jaxllm.serving.anthropic.answers import (
    Block,
    BlockDelta,
    BlockStart,
    BlockStop,
    MessageDelta,
    MessageEnd,
    MessagesAnswer,
    MessagesEvent,
    MessageStart,
    MessageStop,
    MessagesUsage,
    MoreInput,
    MoreText,
    MoreThinking,
    Ping,
    StopReason,
    TextBlock,
    ThinkingBlock,
    ThinkingCount,
    ToolUseBlock,
)
from jaxllm.serving.anthropic.errors import MESSAGES_ERRORS
from jaxllm.serving.http.errors import describe
from jaxllm.serving.openai.chat.plan import ChatCall
from jaxllm.serving.openai.generation.events import UsageCounter
from jaxllm.serving.reply.parts import (
    ContentDelta,
    PlainParser,
    ReasoningDelta,
    ReplyPart,
    ToolCallArguments,
    ToolCallStart,
)
from jaxllm.serving.text.outputs import RequestOutput

_encode = msgspec.json.Encoder().encode


class MessageWriter:
    """Writes one message by the engine's results; see `submission.Writer`."""

    texts = None

    def __init__(self, call: ChatCall, message_id: str, model: str) -> None:
        self._parser = PlainParser() if call.plan.new_parser is None else call.plan.new_parser()
        self._counter = UsageCounter([len(call.request.prompt_token_ids)], call.plan.count_reasoning)
        self._streams = call.request.stream
        self._events: list[bytes] = []
        self._open: Block | None = None
        self._pieces: list[str] = []
        self._message = MessagesAnswer(id=message_id, model=model, content=[], usage=self._usage())
        self._finish_reason: str | None = None
        self._stop_string: str | None = None
        self._stopped = False

    # A stream

    def begin(self) -> bytes:
        """The events before there is a result."""
        self._emit(MessageStart(message=self._message), Ping())
        return self._taken()

    def write(self, prompt_index: int, output: RequestOutput) -> bytes:
        """The events of a result."""
        self._take(output)
        return self._taken()

    def end(self) -> bytes:
        """The events when all is generated."""
        self._close()
        message = self._message
        ended = MessageEnd(stop_reason=message.stop_reason, stop_sequence=message.stop_sequence)
        self._emit(MessageDelta(delta=ended, usage=message.usage), MessageStop())
        return self._taken()

    def fail(self, error: Exception, request_id: str) -> bytes:
        """The event of an error."""
        return MESSAGES_ERRORS.event(describe(error, request_id), request_id)

    # A whole message

    def whole(self, outputs: Sequence[RequestOutput]) -> MessagesAnswer:
        """The message."""
        for output in outputs:
            self._take(output)
        self._close()
        return self._message

    def _take(self, output: RequestOutput) -> None:
        self._counter.add(0, output)
        (completion,) = output.outputs
        self._add(self._parser.push(completion.text))
        if completion.finish_reason is not None:
            self._finish_reason = completion.finish_reason
            self._stopped = completion.finish_reason == "stop" and completion.stop_reason is not None
            if self._stopped and isinstance(completion.stop_reason, str):
                self._stop_string = completion.stop_reason

    def _close(self) -> None:
        self._add(self._parser.finish())
        self._end_block()
        self._message.stop_reason = self._stop_reason()
        self._message.stop_sequence = self._stop_string
        self._message.usage = self._usage()

    def _stop_reason(self) -> StopReason:
        if self._finish_reason != "stop":
            # Cut off, for whatever reason: a call may lack its arguments.
            return "max_tokens"
        if self._stopped:
            return "stop_sequence"
        if any(isinstance(block, ToolUseBlock) for block in self._message.content):
            return "tool_use"
        return "end_turn"

    def _add(self, parts: list[ReplyPart]) -> None:
        for part in parts:
            match part:
                case ContentDelta(text):
                    if not isinstance(self._open, TextBlock):
                        self._begin(TextBlock(text=""))
                    self._more(text, MoreText(text=text))
                case ReasoningDelta(text):
                    if not isinstance(self._open, ThinkingBlock):
                        self._begin(ThinkingBlock(thinking=""))
                    self._more(text, MoreThinking(thinking=text))
                case ToolCallStart():
                    self._begin(ToolUseBlock(id=part.id, name=part.name, input={}))
                case ToolCallArguments(_, arguments):
                    self._more(arguments, MoreInput(partial_json=arguments))

    def _more(self, text: str, delta: MoreText | MoreThinking | MoreInput) -> None:
        self._pieces.append(text)
        self._emit(BlockDelta(index=self._place, delta=delta))

    def _begin(self, block: Block) -> None:
        self._end_block()
        self._message.content.append(block)
        self._open = block
        self._emit(BlockStart(index=self._place, content_block=block))

    def _end_block(self) -> None:
        text = "".join(self._pieces)
        match self._open:
            case None:
                return
            case TextBlock() as block:
                block.text = text
            case ThinkingBlock() as block:
                block.thinking = text
            case ToolUseBlock() as block:
                block.input = _object(text)
        self._emit(BlockStop(index=self._place))
        self._open, self._pieces = None, []

    @property
    def _place(self) -> int:
        return len(self._message.content) - 1

    def _usage(self) -> MessagesUsage:
        usage = self._counter.usage
        cached = usage.prompt_tokens_details.cached_tokens
        return MessagesUsage(
            input_tokens=usage.prompt_tokens - cached,
            cache_read_input_tokens=cached,
            output_tokens=usage.completion_tokens,
            output_tokens_details=ThinkingCount(thinking_tokens=usage.reasoning_tokens),
        )

    def _emit(self, *events: MessagesEvent) -> None:
        if self._streams:
            self._events += [b"event: %b\ndata: %b\n\n" % (event.type.encode(), _encode(event)) for event in events]

    def _taken(self) -> bytes:
        events, self._events = self._events, []
        return b"".join(events)


def _object(text: str) -> dict[str, Any]:
    """Arguments as an object; nothing if they were cut off."""
    try:
        value = json.loads(text or "{}")
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}
