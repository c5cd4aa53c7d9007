"""Answers of token ids, checked, as the engine's results."""

from collections.abc import Sequence

from jaxllm.errors import RequestError, quoted
from jaxllm.requests.outputs import EngineOutput, TokenLogprobs
from jaxllm.serving.http.limits import AdmissionLimits
from jaxllm.serving.openai.generation.validation import check_decodable
from jaxllm.serving.text.input_processor import TextRequest
from jaxllm.serving.text.outputs import CompletionOutput, RequestOutput
from jaxllm.serving.text.sequence import RequestState
from jaxllm.serving.text.sequence import Sequence as TokenSequence
from jaxllm.serving.text.tokenizer import Tokenizer
from jaxllm.serving.token_api.protocol import GivenChoice, GivenTokenLogprob, GivenTokens

_REASONS = ("stop", "length", "repetition", "abort")


def check_given(where: str, given: GivenTokens, limits: AdmissionLimits) -> None:
    """Raise `RequestError` for an answer that no server could have given to a request of this one."""
    if not given.choices:
        raise RequestError(f"{where}.choices: the list is empty", f"{where}.choices")
    check_decodable(f"{where}.choices", sum(len(choice.token_ids or ()) for choice in given.choices), limits)
    for place, choice in enumerate(given.choices):
        field = f"{where}.choices[{place}]"
        if choice.index != place:
            raise RequestError(f"{field}.index={choice.index}: choices are counted from 0, in order", f"{field}.index")
        if choice.finish_reason not in _REASONS:
            raise RequestError(
                f"{field}.finish_reason={quoted(choice.finish_reason)}: must be one of {', '.join(_REASONS)}; only "
                "complete responses can be read",
                f"{field}.finish_reason",
            )
        _check_tokens(f"{field}.token_ids", choice.token_ids or (), limits.vocab_size)
        _check_logprobs(f"{field}.logprobs", choice, limits.vocab_size)
    _check_tokens(f"{where}.prompt_token_ids", given.prompt_token_ids or (), limits.vocab_size)


def _check_tokens(field: str, token_ids: Sequence[int], vocab_size: int) -> None:
    for place, token_id in enumerate(token_ids):
        if not 0 <= token_id < vocab_size:
            raise RequestError(f"{field}[{place}]={token_id}: token IDs must be between 0 and {vocab_size - 1}", field)


def _check_logprobs(field: str, choice: GivenChoice, vocab_size: int) -> None:
    content = None if choice.logprobs is None else choice.logprobs.content
    if not content:
        return
    if len(content) != len(choice.token_ids or ()):
        raise RequestError(f"{field}: {len(content)} for {len(choice.token_ids or ())} tokens", field)
    for each, token_id in zip(content, choice.token_ids or (), strict=True):
        if each.token_id != token_id:
            raise RequestError(f"{field}: is for token {each.token_id}, but {token_id} was generated", field)
        _check_tokens(field, [other.token_id for other in each.top_logprobs or ()], vocab_size)


def num_listed(given: GivenTokens) -> int | None:
    """Most alternatives at one place; None where there are no log-probabilities."""
    contents = [choice.logprobs.content for choice in given.choices if choice.logprobs is not None]
    if not any(contents):
        return None
    return max(len(_alternatives(each)) for content in contents for each in content or ())


def _alternatives(token: GivenTokenLogprob) -> list[tuple[int, float]]:
    """The most likely tokens, best first, or those that were listed: all that have no rank."""
    others = token.top_logprobs or []
    ranked = sorted((each for each in others if each.rank is not None), key=lambda each: each.rank or 0)
    # The chosen token is among them, whatever its rank.
    likely = [each for place, each in enumerate(ranked, start=1) if each.rank == place]
    listed = [each for each in others if each.rank is None]
    return [(each.token_id, each.logprob) for each in listed or likely]


def result_of(tokenizer: Tokenizer, request: TextRequest, given: GivenTokens) -> RequestOutput:
    """The result of the request, with text; for threads."""
    state = RequestState(request)
    details = None if given.usage is None else given.usage.prompt_tokens_details
    state.num_cached_tokens = 0 if details is None else details.cached_tokens or 0
    outputs = [_completion(tokenizer, state, choice) for choice in given.choices]
    return state.result(outputs, finished=True)


def _completion(tokenizer: Tokenizer, state: RequestState, choice: GivenChoice) -> CompletionOutput:
    sequence = TokenSequence(state, choice.index, tokenizer)
    logprobs = None
    if choice.logprobs is not None and state.request.params.logprobs is not None:
        logprobs = [_logprobs(each) for each in choice.logprobs.content or ()]
    # A stop string is found again in the text; the last token is no stop token then.
    by_text = isinstance(choice.stop_reason, str)
    sequence.take(
        EngineOutput(
            state.request.request_id,
            list(choice.token_ids or ()),
            logprobs=logprobs,
            finish_reason="length" if by_text else choice.finish_reason,
            stop_reason=choice.stop_reason,
        )
    )
    (completion,) = sequence.completions()
    completion.finish_reason, completion.stop_reason = choice.finish_reason, choice.stop_reason
    return completion


def _logprobs(token: GivenTokenLogprob) -> TokenLogprobs:
    others = _alternatives(token)
    rank = 1 if token.rank is None else token.rank
    return TokenLogprobs(
        token.token_id, token.logprob, rank, [token_id for token_id, _ in others], [logprob for _, logprob in others]
    )
