"""Results as token ids, whole or in chunks."""

from collections.abc import Sequence
from functools import cached_property

from msgspec import UNSET

from jaxllm.serving.http.identity import Identity
from jaxllm.serving.http.state import ServerState
from jaxllm.serving.openai.generation.events import EventFrame, UsageCounter
from jaxllm.serving.openai.generation.logprobs import finite, prompt_logprobs
from jaxllm.serving.text.input_processor import TextRequest
from jaxllm.serving.text.outputs import CompletionOutput, Logprob, RequestOutput, TokenChoices
from jaxllm.serving.token_api.protocol import (
    ListedLogprob,
    OutputMode,
    TokenIdLogprob,
    TokenIdLogprobs,
    TokensAnswer,
    TokensChoice,
    TokensChunk,
    TokensRequest,
)


class TokensWriter:
    """Writes the continuations of one prompt."""

    texts = None

    def __init__(self, server: ServerState, body: TokensRequest, identity: Identity, request: TextRequest) -> None:
        self._body = body
        self._identity = identity
        self._mode: OutputMode = body.output_mode or "tokens"
        self._prompt_token_ids = request.prompt_token_ids if body.return_token_ids else None
        self._wants_logprobs = request.params.logprobs is not None
        self._bytes = server.token_bytes if self._mode == "text" else None
        self._counter = UsageCounter([len(request.prompt_token_ids)])
        self._force_usage = server.options.enable_force_include_usage
        self._begun = False

    def whole(self, outputs: Sequence[RequestOutput]) -> TokensAnswer:
        """The response."""
        (output,) = outputs
        self._counter.add(0, output)
        given = output.prompt_logprobs
        return TokensAnswer(
            request_id=self._identity.id,
            model=self._identity.model,
            created=self._identity.created,
            output_mode=self._mode,
            choices=[self._choice(completion) for completion in output.outputs],
            usage=self._counter.usage,
            prompt_logprobs=None if given is None else prompt_logprobs(given),
            prompt_token_ids=self._prompt_token_ids,
            kv_transfer_params=output.kv_transfer_params,
        )

    # Only streams have the following.

    @cached_property
    def _frame(self) -> EventFrame:
        empty = TokensChunk(request_id=self._identity.id, output_mode=self._mode, choices=[])
        return EventFrame(empty, self._counter, self._body.stream_options, force_usage=self._force_usage)

    def write(self, prompt_index: int, output: RequestOutput) -> bytes:
        """An event for each continuation with news."""
        self._counter.add(prompt_index, output)
        return b"".join(map(self._event, output.outputs))

    def _event(self, completion: CompletionOutput) -> bytes:
        choice = self._choice(completion)
        if self._begun or self._prompt_token_ids is None:
            return self._frame.event(choice)
        self._begun = True
        return self._frame.event(choice, prompt_token_ids=self._prompt_token_ids)

    def end(self) -> bytes:
        """The usage."""
        return self._frame.end()

    def _choice(self, completion: CompletionOutput) -> TokensChoice:
        return TokensChoice(
            index=completion.index,
            finish_reason=completion.finish_reason,
            stop_reason=completion.stop_reason,
            token_ids=completion.token_ids,
            logprobs=self._logprobs(completion.logprobs),
            text=UNSET if self._mode == "tokens" else completion.text,
        )

    def _logprobs(self, tokens: Sequence[TokenChoices] | None) -> TokenIdLogprobs | None:
        if tokens is None or not self._wants_logprobs:
            return None
        return TokenIdLogprobs(content=[self._token(choices) for choices in tokens])

    def _token(self, choices: TokenChoices) -> TokenIdLogprob:
        listed = [self._listed(token_id, each) for token_id, each in choices.items()]
        chosen = listed[0]
        return TokenIdLogprob(
            token_id=chosen.token_id,
            logprob=chosen.logprob,
            rank=chosen.rank,
            token=chosen.token,
            bytes=chosen.bytes,
            top_logprobs=listed,
        )

    def _listed(self, token_id: int, logprob: Logprob) -> ListedLogprob:
        made = ListedLogprob(token_id=token_id, logprob=finite(logprob), rank=logprob.rank)
        if self._bytes is not None:
            made.token, _ = self._bytes.text(token_id)
            made.bytes = list(self._bytes(token_id))
        return made
