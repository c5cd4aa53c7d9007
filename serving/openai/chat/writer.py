"""Results as chat completions, whole or in chunks."""

from collections.abc import Sequence
from functools import cached_property

from msgspec import UNSET, UnsetType

from jaxllm.serving.http.identity import Identity
from jaxllm.serving.http.state import ServerState
from jaxllm.serving.openai.chat.answers import Answers
from jaxllm.serving.openai.chat.plan import ChatCall
from jaxllm.serving.openai.generation.beam_tree import beam_tree
from jaxllm.serving.openai.generation.events import TEXT, EventFrame, TextEvents, UsageCounter
from jaxllm.serving.openai.generation.logprobs import LogprobFormat, prompt_logprobs
from jaxllm.serving.openai.generation.parameters import num_alternatives, shows_token_ids
from jaxllm.serving.openai.generation.request_metrics import PerRequestMetrics
from jaxllm.serving.openai.protocol.chat import (
    AssistantMessage,
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatCompletionRequest,
    ChatDelta,
)
from jaxllm.serving.openai.protocol.logprobs import ChatLogprobs
from jaxllm.serving.text.outputs import CompletionOutput, RequestOutput


class ChatWriter:
    """Writes the answers to one chat request."""

    def __init__(
        self,
        server: ServerState,
        body: ChatCompletionRequest,
        identity: Identity,
        call: ChatCall,
    ) -> None:
        self._role = server.options.response_role
        self._fingerprint = server.fingerprint
        self._token_bytes = server.token_bytes
        self._identity = identity
        self._body = body
        self._prompt_token_ids = call.request.prompt_token_ids
        self._prompt_text: str | UnsetType = str(call.plan.prompt) if body.return_prompt_text else UNSET
        self._begin = call.plan.begin
        new_parser, names_function = call.plan.new_parser, call.plan.names_function
        self._answers = None
        if new_parser is not None:
            self._answers = Answers(new_parser, named_call=names_function, functions=bool(body.functions))
        self._tier: str | UnsetType = UNSET if body.service_tier is None else "default"
        self._logprobs = _logprob_format(server, body)
        self._counter = UsageCounter([len(self._prompt_token_ids)], call.plan.count_reasoning, is_chat=True)
        self._begun: set[int] = set()
        self._force_usage = server.options.enable_force_include_usage
        self._metrics = PerRequestMetrics(
            self._counter, is_single=(body.n or 1) == 1, timed=server.options.enable_per_request_metrics
        )

    # Only streams have the following two.

    @cached_property
    def texts(self) -> TextEvents:
        """The events that are nothing but text."""
        return TextEvents(self._counter)

    @cached_property
    def _frame(self) -> EventFrame:
        empty = ChatChunk(
            id=self._identity.id,
            created=self._identity.created,
            model=self._identity.model,
            service_tier=self._tier,
            system_fingerprint=self._fingerprint,
            choices=[],
        )
        return EventFrame(empty, self._counter, self._body.stream_options, force_usage=self._force_usage)

    def whole(self, outputs: Sequence[RequestOutput]) -> ChatCompletion:
        """The response."""
        (output,) = outputs
        self._counter.add(0, output)
        identity = self._identity
        answer = ChatCompletion(
            id=identity.id,
            created=identity.created,
            model=identity.model,
            choices=[self._choice(completion) for completion in output.outputs],
            usage=self._counter.usage,
            service_tier=self._tier or None,
            system_fingerprint=self._fingerprint,
            prompt_text=self._prompt_text,
        )
        answer.kv_transfer_params = output.kv_transfer_params
        if output.prompt_logprobs is not None:
            answer.prompt_logprobs = prompt_logprobs(output.prompt_logprobs)
        if self._body.return_token_ids:
            answer.prompt_token_ids = self._prompt_token_ids
        answer.metrics = self._metrics.of(output)
        return answer

    def write(self, prompt_index: int, output: RequestOutput) -> bytes:
        """The role of each new answer, its text, and why it ended, in chunks of their own."""
        if len(output.outputs) == 1:
            (completion,) = output.outputs
            if completion.text and completion.finish_reason is None:
                event = self.texts.write(prompt_index, completion.index, completion.text, completion.token_ids)
                if event is not None:
                    return event
        self._counter.add(prompt_index, output)
        self._metrics.last = output
        return b"".join(event for completion in output.outputs for event in self._events(completion))

    def end(self) -> bytes:
        """The usage."""
        return self._metrics.end(self._frame)

    def _events(self, completion: CompletionOutput) -> list[bytes]:
        events = []
        index = completion.index
        if index not in self._begun:
            events.append(self._first(index))
            self._begun.add(index)
            self._prepare(index)
        logprobs = self._logprobs_of(completion)
        token_ids = self._token_ids_of(completion)
        deltas = self._deltas(completion)
        if not deltas and (token_ids or (logprobs is not None and logprobs.content)):
            deltas = [ChatDelta(content="") if self._answers is None else ChatDelta()]
        ends = completion.finish_reason is not None
        if ends and not (self._frame.continuous and deltas):
            deltas.append(ChatDelta())
        for number, delta in enumerate(deltas, 1):
            choice = ChatChunkChoice(index=index, delta=delta, logprobs=logprobs, token_ids=token_ids)
            if ends and number == len(deltas):
                choice.finish_reason = self._finish_reason(completion)
                choice.stop_reason = completion.stop_reason
            events.append(self._frame.event(choice))
            logprobs, token_ids = None, None
        return events

    def _deltas(self, completion: CompletionOutput) -> list[ChatDelta]:
        if self._answers is not None:
            return self._answers.deltas(completion)
        return [ChatDelta(content=completion.text)] if completion.text else []

    def _finish_reason(self, completion: CompletionOutput) -> str | None:
        return completion.finish_reason if self._answers is None else self._answers.finish_reason(completion)

    def _prepare(self, index: int) -> None:
        """Prepare the events that only bring text, if this answer has such."""
        if self._answers is None and self._logprobs is None and not self._body.return_token_ids:
            choice = ChatChunkChoice(index=index, delta=ChatDelta(content=TEXT))
            self.texts.prepare(index, self._frame.text_event(choice))

    def _first(self, index: int) -> bytes:
        # An answer that may be a call has no content yet, not even an empty one.
        content = self._begin if self._answers is None else self._begin or None
        delta = ChatDelta(role=self._role, content=content, refusal=None)
        choice = ChatChunkChoice(index=index, delta=delta)
        if self._begun:
            return self._frame.first(choice)
        shown = self._prompt_token_ids if self._body.return_token_ids else None
        text = {} if self._prompt_text is UNSET else {"prompt_text": self._prompt_text}
        return self._frame.first(choice, prompt_token_ids=shown, **text)

    def _choice(self, completion: CompletionOutput) -> ChatChoice:
        if self._answers is None:
            message = AssistantMessage(role=self._role, content=self._begin + completion.text)
        else:
            message = self._answers.message(completion, self._role, self._begin)
        finish_reason = self._finish_reason(completion)
        assert finish_reason is not None
        return ChatChoice(
            index=completion.index,
            message=message,
            logprobs=self._logprobs_of(completion),
            finish_reason=finish_reason,
            stop_reason=completion.stop_reason,
            token_ids=self._token_ids_of(completion),
            beam_tree=UNSET if completion.beam_tree is None else beam_tree(completion.beam_tree, self._token_bytes),
        )

    def _logprobs_of(self, completion: CompletionOutput) -> ChatLogprobs | None:
        if self._logprobs is None or completion.logprobs is None:
            return None
        return self._logprobs.chat(completion.logprobs)

    def _token_ids_of(self, completion: CompletionOutput) -> list[int] | None:
        return completion.token_ids if self._body.return_token_ids else None


def _logprob_format(server: ServerState, body: ChatCompletionRequest) -> LogprobFormat | None:
    if not body.logprobs:
        return None
    return LogprobFormat(
        server.token_bytes,
        alternatives=None if body.logprob_token_ids else num_alternatives(body.top_logprobs, server.limits.vocab_size),
        as_token_ids=shows_token_ids(server.options, body),
    )
