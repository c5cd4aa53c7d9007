"""Results as a response of the Responses API, whole or as events."""

import time
from collections.abc import Callable, Mapping, Sequence

import msgspec

from jaxllm.serving.http.errors import describe
from jaxllm.serving.openai.chat.plan import ChatCall
from jaxllm.serving.openai.generation.events import UsageCounter
from jaxllm.serving.openai.generation.logprobs import LogprobFormat
from jaxllm.serving.openai.protocol.logprobs import ChosenLogprob
from jaxllm.serving.openai.protocol.response_answers import (
    IncompleteDetails,
    InputTokensDetails,
    ModelResponse,
    OutputItem,
    OutputTokensDetails,
    RawMessage,
    ResponseError,
    ResponseStatus,
    ResponseUsage,
)
from jaxllm.serving.openai.protocol.response_events import ErrorEvent, Lifecycle, LifecycleEvent, ResponseEvent
from jaxllm.serving.openai.responses.builder import OutputBuilder
from jaxllm.serving.openai.responses.tools import CallableTool
from jaxllm.serving.reply.parts import PlainParser, ReplyPart
from jaxllm.serving.text.outputs import CompletionOutput, RequestOutput

_encode = msgspec.json.Encoder().encode


class ResponseWriter:
    """Brings one response from in_progress to its end, by the engine's results.

    As a writer of events it follows `stream.EventWriter`.
    """

    texts = None

    def __init__(
        self,
        response: ModelResponse,
        call: ChatCall,
        *,
        streams: bool,
        logprobs: LogprobFormat | None,
        on_end: Callable[[], None] = lambda: None,
        tools: Mapping[str, CallableTool] | None = None,
        messages: bool = False,
        begun: Sequence[OutputItem] = (),
    ) -> None:
        """Without `streams`, events are not made. `on_end` is called when the response has ended, in whatever way.

        `tools` and `begun`: see `OutputBuilder`. With `messages`, the response has what the model read and wrote.
        """
        self.response = response
        self._parser = PlainParser() if call.plan.new_parser is None else call.plan.new_parser()
        self._counter = UsageCounter([len(call.request.prompt_token_ids)], call.plan.count_reasoning)
        self._logprobs = logprobs
        self._on_end = on_end
        self._finish_reason: str | None = None
        self._events: list[bytes] = []
        self._streams = streams
        self._number = 0
        self._builder = OutputBuilder(self._emit, tools, begun)
        self.response.output = self._builder.items
        self._reply: RawMessage | None = None
        if messages:
            prompt = RawMessage(message=str(call.plan.prompt), tokens=call.request.prompt_token_ids)
            self.response.input_messages = [prompt]
            self._reply = RawMessage(message="", tokens=[])

    @property
    def ended(self) -> bool:
        """Whether the response has ended, in whatever way."""
        return self.response.status not in ("queued", "in_progress")

    # A stream

    def begin(self) -> bytes:
        """The events before there is a result."""
        self.start()
        return b"".join(self.take_events())

    def write(self, prompt_index: int, output: RequestOutput) -> bytes:
        """The events of a result."""
        self.take(output)
        return b"".join(self.take_events())

    def end(self) -> bytes:
        """The events when all is generated."""
        self.close()
        return b"".join(self.take_events())

    def fail(self, error: Exception, request_id: str) -> bytes:
        """The events of a response that fails."""
        self.break_off(error, request_id)
        return b"".join(self.take_events())

    def take_events(self) -> list[bytes]:
        """The events since the last call, each on its own."""
        events, self._events = self._events, []
        return events

    def go_on_from(self, number: int) -> None:
        """Forget the events since the last call of `take_events`: clients have them, up to this number."""
        self._events = []
        self._number = number

    # A whole response

    def whole(self, outputs: Sequence[RequestOutput]) -> ModelResponse:
        """The response."""
        for output in outputs:
            self.take(output)
        self.close()
        return self.response

    # Steps of both

    def start(self) -> None:
        """The request is on its way."""
        self._lifecycle("response.created")
        if self.response.status == "queued":
            self._lifecycle("response.queued")
            self.response.status = "in_progress"
        self._lifecycle("response.in_progress")

    def take(self, output: RequestOutput) -> None:
        """Take results."""
        self._counter.add(0, output)
        (completion,) = output.outputs
        self._add(self._parser.push(completion.text), completion)
        if self._reply is not None:
            self._reply.message += completion.text
            self._reply.tokens += completion.token_ids
        if completion.finish_reason is not None:
            self._finish_reason = completion.finish_reason

    def close(self) -> None:
        """All is generated."""
        self._add(self._parser.finish(), None)
        complete = self._finish_reason == "stop"
        self._builder.finish(complete=complete)
        if not complete:
            in_circles = self._finish_reason == "repetition"
            self.response.incomplete_details = IncompleteDetails(
                reason="repetition" if in_circles else "max_output_tokens"
            )
        if complete:
            self.response.completed_at = int(time.time())
        self._settle("completed" if complete else "incomplete")
        self._lifecycle("response.completed" if complete else "response.incomplete")

    def break_off(self, error: Exception, request_id: str) -> None:
        """The response fails, with what there is of it."""
        details = describe(error, request_id).details
        self._builder.finish(complete=False)
        self.response.error = ResponseError(message=details.message)
        self._emit(ErrorEvent(code=details.code, message=details.message, param=details.param))
        self._settle("failed")
        self._lifecycle("response.failed")

    def cancel(self) -> None:
        """The response is cancelled, with what there is of it."""
        self._builder.finish(complete=False)
        self._settle("cancelled")

    def _settle(self, status: ResponseStatus) -> None:
        self.response.status = status
        self.response.usage = self._usage()
        if self._reply is not None:
            self.response.output_messages = [self._reply]
        self._on_end()

    def _add(self, parts: list[ReplyPart], completion: CompletionOutput | None) -> None:
        self._builder.add(parts, self._logprobs_of(completion))

    def _logprobs_of(self, completion: CompletionOutput | None) -> list[ChosenLogprob]:
        if self._logprobs is None or completion is None or completion.logprobs is None:
            return []
        return self._logprobs.chat(completion.logprobs).content or []

    def _usage(self) -> ResponseUsage:
        usage = self._counter.usage
        return ResponseUsage(
            input_tokens=usage.prompt_tokens,
            input_tokens_details=InputTokensDetails(cached_tokens=usage.prompt_tokens_details.cached_tokens),
            output_tokens=usage.completion_tokens,
            output_tokens_details=OutputTokensDetails(reasoning_tokens=usage.reasoning_tokens),
            total_tokens=usage.total_tokens,
        )

    def _lifecycle(self, step: Lifecycle) -> None:
        self._emit(LifecycleEvent(type=step, response=self.response))

    def _emit(self, event: ResponseEvent) -> None:
        if not self._streams:
            return
        event.sequence_number = self._number
        self._number += 1
        self._events.append(_as_sent(event))


def failed_event(response: ModelResponse, number: int) -> bytes:
    """The last event of a response that has failed before it was begun."""
    return _as_sent(LifecycleEvent(type="response.failed", response=response, sequence_number=number))


def _as_sent(event: ResponseEvent) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (event.type.encode(), _encode(event))
