"""The faults of a request before any work is done on it: all limits of the server are checked here.

What a prompt and its parameters may be for the model is checked where they meet: by `InputProcessor.build`.
"""

from jaxllm.errors import PromptTooLongError, RequestError
from jaxllm.serving.http.errors import BodyError
from jaxllm.serving.http.limits import AdmissionLimits
from jaxllm.serving.openai.protocol.generation import GenerationRequest

MOST_CONTEXTS = 8
"""Times the model's longest prompt that is encoded or decoded where only text and tokens are asked for."""
_INT64 = range(-(2**63), 2**63)


def check_generation(
    body: GenerationRequest, limits: AdmissionLimits, *, num_prompts: int = 1, **alternatives: int | None
) -> None:
    """Raise `RequestError` for fields that cannot be combined, or ask for more than the server gives.

    `alternatives` are fields that say how many alternatives per token are to be returned.
    """
    if not body.stream:
        if body.stream_options is not None:
            raise RequestError("stream_options requires stream=true", "stream_options")
    elif body.prompt_logprobs is not None:
        raise RequestError("prompt_logprobs cannot be streamed: omit stream", "prompt_logprobs")
    if body.cache_salt == "":
        raise RequestError("cache_salt='': must be a non-empty string", "cache_salt")
    check_sequences(body, num_prompts, limits.max_sequences)
    for name, value in {**alternatives, "prompt_logprobs": body.prompt_logprobs}.items():
        if value is not None:
            _check_alternatives(name, value, limits)


def check_sequences(body: GenerationRequest, num_prompts: int, most: int) -> None:
    """Raise `RequestError` when the request alone has more sequences than may ever run and wait."""
    name = width_name(body)
    each = (body.n if body.best_of is None else body.best_of) or 1
    if each * num_prompts > most:
        for_prompts = f" for each of {num_prompts} prompts" if num_prompts > 1 else ""
        raise RequestError(f"{name}={each}{for_prompts}: a request may have at most {most} sequences", name)


def width_name(body: GenerationRequest) -> str:
    """The field that says how many sequences are generated."""
    return "n" if body.best_of is None else "best_of"


def _check_alternatives(name: str, value: int, limits: AdmissionLimits) -> None:
    most = limits.max_logprobs
    if 0 <= value <= most or (value == -1 and most >= limits.vocab_size):
        return
    if value == -1:
        raise RequestError(f"{name}=-1: returning the whole vocabulary requires --max-logprobs -1", name)
    raise RequestError(f"{name}={value}: must be an integer from 0 to {most} (--max-logprobs)", name)


def check_max_tokens(name: str, asked: int | None, limits: AdmissionLimits) -> None:
    """Raise an error if the `asked` tokens, of the field `name`, are more than the model's context holds.

    More than what the prompt leaves of it is accepted: the text then ends where the context does.
    """
    if asked is not None and asked > limits.max_model_len:
        raise BodyError(
            f"{name}={asked}: this model's maximum context length is {limits.max_model_len} tokens, prompt and output "
            "together; request at most that many",
            name,
            "context_length_exceeded",
        )


def checked_priority(asked: int | None, limits: AdmissionLimits) -> int:
    """The priority that a request asks for, or 0. Raises `RequestError` where the engine would not look at it."""
    priority = asked or 0
    if priority not in _INT64:
        raise RequestError("priority: must be a 64-bit signed integer", "priority")
    if priority and not limits.by_priority:
        raise RequestError(
            f"priority={priority}: this server schedules requests in order of arrival; start it with "
            "--scheduling-policy priority to use priorities",
            "priority",
        )
    return priority


def check_texts(field: str, count: int, limits: AdmissionLimits) -> None:
    """Raise `RequestError` for more texts to pool than may ever run and wait."""
    if count > limits.max_sequences:
        raise RequestError(
            f"{field}: {count} strings; a request may have at most {limits.max_sequences} (--max-num-seqs and "
            "--max-queued-requests together)",
            field,
        )


def check_encodable(text: str, field: str, limits: AdmissionLimits, longest_token: int | None) -> None:
    """Raise `RequestError` for a text that nobody needs the tokens of: it is many times as long as the model reads.

    `longest_token` is in characters; None: it is not known.
    """
    most = MOST_CONTEXTS * limits.max_model_len
    if longest_token is not None and len(text) > most * longest_token:
        raise PromptTooLongError(
            f"{field}: {len(text)} characters; at most {most * longest_token} are accepted, {MOST_CONTEXTS} times the "
            "length of the model's longest prompt",
            field,
        )


def check_decodable(field: str, count: int, limits: AdmissionLimits) -> None:
    """Raise `RequestError` for more token ids than are decoded at once."""
    most = MOST_CONTEXTS * limits.max_model_len
    if count > most:
        raise RequestError(f"{field}: {count} token IDs; at most {most} are accepted", field)
