"""Sampling parameters from requests."""

from collections.abc import Mapping
from typing import Any, Protocol

import msgspec

from jaxllm.beam.params import BeamOptions
from jaxllm.config import EngineConfig
from jaxllm.errors import RequestError
from jaxllm.info import EngineInfo
from jaxllm.sampling_params import SamplingParams
from jaxllm.serving.http.body.base import refused_fields
from jaxllm.serving.http.errors import BodyError
from jaxllm.serving.openai.generation.structured import structured_outputs
from jaxllm.serving.openai.protocol.generation import GenerationRequest
from jaxllm.serving.options.server import ServerOptions

_OWN_MEANING = {"max_tokens", "logprobs", "structured_outputs", "thinking_token_budget"}
"""Fields that chats and completions understand differently, or that are not what they are in the engine."""
_SHARED = tuple(
    name
    for name in SamplingParams.__struct_fields__
    if name in GenerationRequest.__struct_fields__ and name not in _OWN_MEANING
)
_INT64 = range(-(2**63), 2**63)


class Prioritised(Protocol):
    """A body that may have a priority."""

    priority: int | None


def sampling_params(
    body: GenerationRequest, defaults: SamplingParams, *, max_tokens: int | None, logprobs: int | None, **others: Any
) -> SamplingParams:
    """The parameters of a request; what it leaves out is as in `defaults`, and `others` go before what it says.

    Raises `RequestError`.
    """
    given = {name: value for name in _SHARED if (value := getattr(body, name)) is not None}
    if others.get("structured_outputs") is None:
        others["structured_outputs"] = structured_outputs(body)
    if body.thinking_token_budget not in (None, -1):
        given["thinking_token_budget"] = body.thinking_token_budget
    if body.use_beam_search:
        if others["structured_outputs"] is not None:
            raise RequestError("structured outputs do not go with beam search", "use_beam_search")
        return beam_params(body, {**given, **others}, max_tokens=max_tokens, logprobs=logprobs)
    if body.length_penalty not in (None, 1.0):
        raise RequestError("length_penalty: only with use_beam_search", "length_penalty")
    if body.early_stopping:
        raise RequestError("early_stopping: only with use_beam_search", "early_stopping")
    return msgspec.structs.replace(defaults, **given, **others, max_tokens=max_tokens, logprobs=logprobs)


def generation_fields(body: GenerationRequest) -> dict[str, Any]:
    """What a request of another interface says of generation, for a chat request: all that its kind does not refuse."""
    refused = refused_fields(type(body))
    return {name: getattr(body, name) for name in GenerationRequest.__struct_fields__ if name not in refused}


def beam_params(
    body: GenerationRequest, given: Mapping[str, Any], *, max_tokens: int | None, logprobs: int | None
) -> SamplingParams:
    """The parameters of a beam search. Raises `RequestError`, also for what does not go with one.

    What the model's makers recommend for drawing tokens does not matter here.
    """
    if body.stream:
        raise RequestError("beam search cannot be streamed: which beams are best is known at the end", "stream")
    if body.prompt_logprobs is None and "prompt_logprobs" in given:
        raise RequestError("echo with logprobs does not go with beam search", "echo")
    options = BeamOptions(
        width=getattr(body, width_name(body)) or 1,
        n=body.n or 1,
        length_penalty=1.0 if body.length_penalty is None else body.length_penalty,
        early_stopping=body.early_stopping or False,
    )
    others = {name: value for name, value in given.items() if name not in ("n", "best_of", "temperature")}
    return SamplingParams(**others, temperature=0.0, max_tokens=max_tokens, logprobs=logprobs, beam_search=options)


def width_name(body: GenerationRequest) -> str:
    """The field that says how many sequences are generated."""
    return "n" if body.best_of is None else "best_of"


def recommended_max_tokens(defaults: SamplingParams) -> int | None:
    """The length that the model's makers recommend, if they do."""
    return None if defaults.max_tokens == SamplingParams().max_tokens else defaults.max_tokens


def check_alternatives(name: str, value: int | None, info: EngineInfo) -> None:
    """Raise `RequestError` if a request asks for more alternatives per token than the engine returns; -1: for all."""
    most = info.max_logprobs
    if value is None or 0 <= value <= most or (value == -1 and most >= info.vocab_size):
        return
    if value == -1:
        raise RequestError(f"{name}=-1: the whole vocabulary is returned only with --max-logprobs -1", name)
    raise RequestError(f"{name}={value}: must be an integer from 0 to {most} (--max-logprobs)", name)


def shows_token_ids(options: ServerOptions, body: GenerationRequest) -> bool:
    """Whether tokens in logprobs are shown as numbers."""
    asked = body.return_tokens_as_token_ids
    return options.return_tokens_as_token_ids if asked is None else asked


def num_alternatives(value: int | None, info: EngineInfo) -> int:
    """How many alternatives per token a request asks for."""
    return info.vocab_size if value == -1 else value or 0


def check_stream(body: GenerationRequest) -> None:
    """Raise `RequestError` for fields that do not go with `stream`."""
    if not body.stream:
        if body.stream_options is not None:
            raise RequestError("stream_options are only for stream=true", "stream_options")
    elif body.prompt_logprobs is not None:
        raise RequestError("prompt_logprobs cannot be streamed: leave stream out", "prompt_logprobs")


def check_sequences(body: GenerationRequest, num_prompts: int, most: int) -> None:
    """Raise `RequestError` when the request alone has more sequences than may ever run and wait."""
    name = width_name(body)
    each = (body.n if body.best_of is None else body.best_of) or 1
    if each * num_prompts > most:
        for_prompts = f" for each of {num_prompts} prompts" if num_prompts > 1 else ""
        raise RequestError(f"{name}={each}{for_prompts}: a request may have at most {most} sequences", name)


def checked_priority(body: Prioritised, config: EngineConfig) -> int:
    """The request's priority. Raises `RequestError` where the engine would not look at it."""
    priority = body.priority or 0
    if priority not in _INT64:
        raise RequestError("priority: must be a 64-bit signed integer", "priority")
    if priority and config.scheduler.scheduling_policy != "priority":
        raise RequestError(
            f"priority={priority}: this server takes requests in order of arrival; it looks at priorities with "
            "--scheduling-policy priority",
            "priority",
        )
    return priority


def check_max_tokens(name: str, asked: int | None, max_model_len: int) -> None:
    """Raise an error if the `asked` tokens, of the field `name`, are more than the model's context holds.

    More than what the prompt leaves of it is accepted: the text then ends where the context does.
    """
    if asked is not None and asked > max_model_len:
        raise BodyError(
            f"{name}={asked}: this model's maximum context length is {max_model_len} tokens, prompt and answer "
            "together; ask for no more than that",
            name,
            "context_length_exceeded",
        )
