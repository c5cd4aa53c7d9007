"""Completions: prompts in, their continuations out."""

from typing import cast

from starlette.requests import Request
from starlette.responses import Response

from jaxllm.errors import RequestError
from jaxllm.sampling_params import SamplingParams
from jaxllm.serving.http.body.decode import read_body
from jaxllm.serving.http.generate import calling, identify, respond, try_grammar
from jaxllm.serving.http.state import ServerState, server_of
from jaxllm.serving.openai.completions.writer import CompletionWriter
from jaxllm.serving.openai.generation import parameters
from jaxllm.serving.openai.generation.structured import naming_form
from jaxllm.serving.openai.protocol.completions import CompletionRequest
from jaxllm.serving.text.prompts import Prompt

MAX_PROMPTS = 1024
"""Most prompts in one request."""


async def create_completion(request: Request) -> Response:
    """Continue one prompt or several."""
    server = server_of(request)
    server.check_accepting()
    body = await read_body(request, CompletionRequest)
    prompts = await server.bodies.work(request, lambda: split_prompts(body.prompt))
    identity = identify(request, server, body, "cmpl", len(prompts))
    _check(body, server, len(prompts))
    with calling(beam_width=parameters.width_name(body)), naming_form(body):
        params = await server.bodies.work(request, lambda: _params(body, server.llm.default_params))
        await try_grammar(request, server, params)
        requests = await server.llm.prepare(
            [_with_salt(prompt, body.cache_salt) for prompt in prompts],
            params,
            identity.engine_ids,
            priority=parameters.checked_priority(body, server.llm.config),
            stream=bool(body.stream),
            add_special_tokens=body.add_special_tokens is not False,
        )
    return await respond(request, server, requests, CompletionWriter(server, body, identity, requests))


def split_prompts(prompt: str | list[str | int | list[int]], *, most: int = MAX_PROMPTS) -> list[str | list[int]]:
    """The prompts of a request, each text or token ids. Raises `RequestError` for a mixture and for too many."""
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise RequestError("prompt: the list is empty", "prompt")
    kinds = {type(item) for item in prompt}
    if len(kinds) > 1:
        raise RequestError("prompt: texts, token ids and lists of token ids cannot be mixed in one list", "prompt")
    if kinds == {int}:
        return [cast("list[int]", prompt)]
    if len(prompt) > most:
        raise RequestError(f"prompt: {len(prompt)} prompts; a request may have at most {most}", "prompt")
    return cast("list[str | list[int]]", prompt)


def _with_salt(prompt: str | list[int], salt: str | None) -> Prompt:
    return {"prompt" if isinstance(prompt, str) else "prompt_token_ids": prompt, "cache_salt": salt}


def _check(body: CompletionRequest, server: ServerState, num_prompts: int) -> None:
    """Raise `RequestError` for fields that do not go together, or are too large."""
    parameters.check_max_tokens("max_tokens", body.max_tokens, server.llm.info.max_model_len)
    parameters.check_stream(body)
    parameters.check_sequences(body, num_prompts, server.most_sequences)
    parameters.check_alternatives("logprobs", body.logprobs, server.llm.info)
    parameters.check_alternatives("prompt_logprobs", body.prompt_logprobs, server.llm.info)
    if body.logprob_token_ids is not None and body.logprobs is None:
        raise RequestError("logprob_token_ids needs logprobs: set it to 0 or more", "logprob_token_ids")
    if body.logprob_token_ids is not None and body.echo and body.max_tokens == 0:
        raise RequestError("logprob_token_ids: with max_tokens=0 no tokens are generated", "logprob_token_ids")


def _params(body: CompletionRequest, defaults: SamplingParams) -> SamplingParams:
    max_tokens = defaults.max_tokens if body.max_tokens is None else body.max_tokens
    others = {}
    if body.echo and body.logprobs is not None and body.prompt_logprobs is None:
        others["prompt_logprobs"] = body.logprobs
    if body.echo and max_tokens == 0:
        # The engine computes the prompt on its way to a first token, which is then left out.
        max_tokens = 1
    return parameters.sampling_params(body, defaults, max_tokens=max_tokens, logprobs=body.logprobs, **others)
