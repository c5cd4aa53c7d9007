"""Results as completions, whole or in chunks."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from jaxllm.serving.http.identity import Identity
from jaxllm.serving.http.state import ServerState
from jaxllm.serving.openai.generation.beam_tree import beam_tree
from jaxllm.serving.openai.generation.events import TEXT, EventFrame, TextEvents, UsageCounter
from jaxllm.serving.openai.generation.logprobs import LogprobFormat, TextOffsets, prompt_logprobs
from jaxllm.serving.openai.generation.parameters import num_alternatives, shows_token_ids
from jaxllm.serving.openai.generation.request_metrics import PerRequestMetrics
from jaxllm.serving.openai.protocol.completions import Completion, CompletionChoice, CompletionRequest
from jaxllm.serving.openai.protocol.logprobs import CompletionLogprobs
from jaxllm.serving.text.input_processor import TextRequest
from jaxllm.serving.text.outputs import CompletionOutput, RequestOutput, TokenChoices
from jaxllm.serving.text.tokenizer import Tokenizer


class CompletionWriter:
    """Writes the completions of one request's prompts."""

    def __init__(
        self, server: ServerState, body: CompletionRequest, identity: Identity, requests: Sequence[TextRequest]
    ) -> None:
        self._server = server
        self._fingerprint = server.fingerprint
        self._identity = identity
        self._body = body
        self._requests = requests
        self._n = body.n or 1
        self._prompt_only = bool(body.echo) and body.max_tokens == 0
        self._counter = UsageCounter([len(request.prompt_token_ids) for request in requests])
        self._offsets: dict[int, TextOffsets] = {}
        self._prompt_logprobs: dict[int, list[TokenChoices | None]] = {}
        self._force_usage = server.options.enable_force_include_usage
        self._metrics = PerRequestMetrics(
            self._counter, is_single=len(requests) == self._n == 1, timed=server.options.enable_per_request_metrics
        )

    @cached_property
    def _format(self) -> LogprobFormat:
        server, body = self._server, self._body
        return LogprobFormat(
            server.token_bytes,
            alternatives=num_alternatives(body.logprobs, server.limits.vocab_size),
            as_token_ids=shows_token_ids(server.options, body),
        )

    # Only streams have the following two.

    @cached_property
    def texts(self) -> TextEvents:
        """The events that are nothing but text."""
        return TextEvents(self._counter)

    @cached_property
    def _frame(self) -> EventFrame:
        return EventFrame(self._completion([]), self._counter, self._body.stream_options, force_usage=self._force_usage)

    def whole(self, outputs: Sequence[RequestOutput]) -> Completion:
        """The response."""
        answer = self._completion(
            [choice for index, output in enumerate(outputs) for choice in self._choices(index, output)]
        )
        answer.usage = self._counter.usage
        answer.service_tier, answer.kv_transfer_params = None, outputs[0].kv_transfer_params
        answer.metrics = self._metrics.of(outputs[0])
        return answer

    def write(self, prompt_index: int, output: RequestOutput) -> bytes:
        """A chunk for each choice with news."""
        if len(output.outputs) == 1:
            (completion,) = output.outputs
            if completion.finish_reason is None:
                index = prompt_index * self._n + completion.index
                event = self.texts.write(prompt_index, index, completion.text, completion.token_ids)
                if event is not None:
                    return event
        self._metrics.last = output
        return b"".join(self._frame.event(choice) for choice in self._choices(prompt_index, output))

    def end(self) -> bytes:
        """The usage."""
        return self._metrics.end(self._frame)

    def _choices(self, prompt_index: int, output: RequestOutput) -> list[CompletionChoice]:
        if self._prompt_only:
            output = replace(output, outputs=[_without_tokens(completion) for completion in output.outputs])
        if output.prompt_logprobs is not None:
            self._prompt_logprobs.setdefault(prompt_index, output.prompt_logprobs)
        self._counter.add(prompt_index, output)
        return [self._choice(prompt_index, completion) for completion in output.outputs]

    def _choice(self, prompt_index: int, completion: CompletionOutput) -> CompletionChoice:
        """News of a choice; its first come after the prompt, if that is to be echoed."""
        index = prompt_index * self._n + completion.index
        request = self._requests[prompt_index]
        first = index not in self._offsets
        offsets = self._offsets.setdefault(index, TextOffsets())
        if first:
            self._prepare(index)
        choice = CompletionChoice(
            index=index,
            text=completion.text,
            logprobs=self._logprobs_of(request, completion, offsets, echo=first, prompt_index=prompt_index),
            finish_reason=completion.finish_reason,
            stop_reason=completion.stop_reason,
        )
        if first and self._body.echo:
            choice.text = echoed(request, self._server.tokenizer) + choice.text
        if self._body.return_token_ids:
            choice.token_ids = completion.token_ids
            choice.prompt_token_ids = request.prompt_token_ids if first else None
        if self._body.prompt_logprobs is not None:
            choice.prompt_logprobs = prompt_logprobs(self._prompt_logprobs[prompt_index])
        elif not self._body.stream:
            choice.prompt_logprobs = None
        if completion.beam_tree is not None:
            choice.beam_tree = beam_tree(completion.beam_tree, self._server.token_bytes)
        return choice

    def _prepare(self, index: int) -> None:
        """Prepare the events that only bring text, if this choice has such."""
        body = self._body
        more = body.return_token_ids or body.logprobs is not None or body.prompt_logprobs is not None
        if not more and not self._prompt_only:
            choice = CompletionChoice(index=index, text=TEXT, logprobs=None, finish_reason=None)
            self.texts.prepare(index, self._frame.text_event(choice))

    def _logprobs_of(
        self,
        request: TextRequest,
        completion: CompletionOutput,
        offsets: TextOffsets,
        *,
        echo: bool,
        prompt_index: int,
    ) -> CompletionLogprobs | None:
        if self._body.logprobs is None:
            return None
        made = CompletionLogprobs(text_offset=[], token_logprobs=[], tokens=[], top_logprobs=[])
        if echo and self._body.echo:
            hidden = hidden_in(request, self._server.tokenizer)
            self._format.completion(
                made, request.prompt_token_ids, self._prompt_logprobs[prompt_index], offsets, hidden
            )
        hidden = self._server.tokenizer.special_ids if request.params.skip_special_tokens else frozenset[int]()
        self._format.completion(made, completion.token_ids, completion.logprobs or (), offsets, hidden)
        return made

    def _completion(self, choices: list[CompletionChoice]) -> Completion:
        return Completion(
            id=self._identity.id,
            created=self._identity.created,
            model=self._identity.model,
            system_fingerprint=self._fingerprint,
            choices=choices,
        )


def echoed(request: TextRequest, tokenizer: Tokenizer) -> str:
    """The prompt as text: what was given, or what its tokens say. Special tokens that the client gave stay."""
    params = request.params
    if request.prompt is not None and params.truncate_prompt_tokens is None:
        return request.prompt
    skip = request.prompt is not None and params.skip_special_tokens
    return tokenizer.decode(request.prompt_token_ids, skip_special_tokens=skip)


def hidden_in(request: TextRequest, tokenizer: Tokenizer) -> frozenset[int]:
    """Special tokens of the prompt that do not stand in its text, such as one that was put in front of it."""
    text = echoed(request, tokenizer)
    special = tokenizer.special_ids.intersection(request.prompt_token_ids)
    return frozenset(token_id for token_id in special if tokenizer.added_tokens[token_id] not in text)


def _without_tokens(completion: CompletionOutput) -> CompletionOutput:
    """The completion of a request for the prompt alone."""
    logprobs: list[TokenChoices] | None = None if completion.logprobs is None else []
    reason = None if completion.finish_reason is None else "length"
    return replace(completion, text="", token_ids=[], logprobs=logprobs, finish_reason=reason, stop_reason=None)
