"""Completions: prompts in, their continuations out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from starlette.requests import Request
from starlette.responses import Response

from jaxllm.engine.validation import RequestLimits
from jaxllm.errors import RequestError
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.http.errors import BodyError
from jaxllm.serving.http.identity import identify
from jaxllm.serving.http.limits import AdmissionLimits
from jaxllm.serving.http.state import ServerState, server_of
from jaxllm.serving.http.submission import respond, try_grammar
from jaxllm.serving.openai.completions.writer import CompletionWriter
from jaxllm.serving.openai.generation.parameters import check_one_prompt, naming_form, sampling_params
from jaxllm.serving.openai.generation.validation import check_generation, check_max_tokens, checked_priority
from jaxllm.serving.openai.protocol.completions import CompletionRequest
from jaxllm.serving.pooling.inputs import PoolingInputs
from jaxllm.serving.text.embeds import read_base64
from jaxllm.serving.text.input_processor import InputProcessor, TextRequest
from jaxllm.serving.text.prompts import ParsedPrompt, naming_prompt

MAX_PROMPTS = 1024
"""Most prompts in one request."""


@dataclass(frozen=True)
class Embeds:
    """A prompt as embeddings: a file in base64."""

    data: str


GivenPrompt = str | list[int] | Embeds
"""Text, token ids, or embeddings."""


async def create_completion(request: Request) -> Response:
    """Continue one prompt or several."""
    server = server_of(request)
    server.check_accepting()
    body = await server.bodies.read(request, CompletionRequest)
    if body.echo or body.stop or body.logprobs is not None:
        # They need text: where there is none, that is said before anything is computed.
        _ = server.tokenizer
    prompts = await server.bodies.work(request, lambda: prompts_of(body, RequestLimits.of(server.llm.info)))
    identity = identify(request, server, body, "cmpl", len(prompts))
    requests = await prepare_completions(request, server, body, prompts, identity.engine_ids)
    return await respond(request, server, requests, CompletionWriter(server, body, identity, requests))


async def prepare_completions(
    request: Request,
    server: ServerState,
    body: CompletionRequest,
    prompts: Sequence[GivenPrompt],
    engine_ids: Sequence[str],
) -> list[TextRequest]:
    """Check a request for completions, and make a request for the engine of each prompt. Raises `RequestError`."""
    priority = _check(body, server.limits, len(prompts))
    try:
        params = await server.bodies.work(request, lambda: _params(body, server.llm.default_params))
        check_one_prompt(params, len(prompts))
        if params.structured_outputs is not None:
            await try_grammar(request, server, params)
        return await server.llm.run_text(_build, server.llm.inputs, body, prompts, params, engine_ids, priority)
    except RequestError as error:
        raise naming_form(error, body) from None


def prompts_of(body: CompletionRequest, limits: RequestLimits) -> list[GivenPrompt]:
    """The prompts of a request, embeddings first. Raises `RequestError`."""
    given = body.prompt_embeds
    embeds = [given] if isinstance(given, str) else given or []
    if body.prompt is None and not embeds:
        raise BodyError("prompt: this field is required", "prompt", "missing_required_parameter")
    if not embeds:
        assert body.prompt is not None
        return [*split_prompts(body.prompt)]
    limits.check_width()
    if body.echo:
        raise RequestError("echo cannot be combined with prompt_embeds, which have no text; omit it", "echo")
    texts = [] if not body.prompt else split_prompts(body.prompt)
    if len(embeds) + len(texts) > MAX_PROMPTS:
        raise RequestError(
            f"prompt_embeds: {len(embeds) + len(texts)} prompts; a request may have at most {MAX_PROMPTS}",
            "prompt_embeds",
        )
    return [*map(Embeds, embeds), *texts]


def split_prompts(prompt: str | list[str | int | list[int]], *, most: int = MAX_PROMPTS) -> list[str | list[int]]:
    """The prompts of a request, each text or token ids. Raises `RequestError` for a mixture and for too many."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise RequestError("prompt: the list is empty", "prompt")
    kinds = {type(item) for item in prompt}
    if len(kinds) > 1:
        raise RequestError("prompt: strings, token IDs and lists of token IDs cannot be mixed in one list", "prompt")
    if kinds == {int}:
        return [cast("list[int]", prompt)]
    if len(prompt) > most:
        raise RequestError(f"prompt: {len(prompt)} prompts; a request may have at most {most}", "prompt")
    return cast("list[str | list[int]]", prompt)


def _check(body: CompletionRequest, limits: AdmissionLimits, num_prompts: int) -> int:
    """The priority. Raises `RequestError` for fields that cannot be combined, or are too large."""
    check_max_tokens("max_tokens", body.max_tokens, limits)
    check_generation(body, limits, num_prompts=num_prompts, logprobs=body.logprobs)
    if body.logprob_token_ids is not None and body.logprobs is None:
        raise RequestError("logprob_token_ids needs logprobs: set it to 0 or more", "logprob_token_ids")
    if body.logprob_token_ids is not None and body.echo and body.max_tokens == 0:
        raise RequestError("logprob_token_ids: with max_tokens=0 no tokens are generated", "logprob_token_ids")
    return checked_priority(body.priority, limits)


def _build(
    inputs: InputProcessor | PoolingInputs,
    body: CompletionRequest,
    prompts: Sequence[GivenPrompt],
    params: SamplingParams,
    engine_ids: Sequence[str],
    priority: int,
) -> list[TextRequest]:
    """One request for the engine per prompt; for threads. Raises `RequestError`."""
    assert isinstance(inputs, InputProcessor)
    parsed = []
    for index, prompt in enumerate(prompts):
        with naming_prompt(index, len(prompts)):
            parsed.append(_parsed(prompt, body))
    return inputs.build(
        parsed,
        [params] * len(prompts),
        engine_ids,
        [priority] * len(prompts),
        stream=bool(body.stream),
        add_special_tokens=body.add_special_tokens is not False,
    )


def _parsed(prompt: GivenPrompt, body: CompletionRequest) -> ParsedPrompt:
    text, token_ids, embeds = None, None, None
    if isinstance(prompt, str):
        text = prompt
    elif isinstance(prompt, Embeds):
        embeds = read_base64(prompt.data)
    else:
        token_ids = prompt
    return ParsedPrompt(text, token_ids, body.cache_salt, truncation_side=body.truncation_side or "left", embeds=embeds)


def _params(body: CompletionRequest, defaults: SamplingParams) -> SamplingParams:
    max_tokens = defaults.max_tokens if body.max_tokens is None else body.max_tokens
    others = {}
    if body.echo and body.logprobs is not None and body.prompt_logprobs is None:
        others["prompt_logprobs"] = body.logprobs
    if body.echo and max_tokens == 0:
        # The engine computes the prompt on its way to a first token, which is then left out.
        max_tokens = 1
    return sampling_params(body, defaults, max_tokens=max_tokens, logprobs=body.logprobs, **others)
