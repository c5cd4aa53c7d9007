"""Generation from token ids, to token ids: for whoever renders prompts and reads replies elsewhere."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from jaxllm.errors import RequestError
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.http.identity import identify
from jaxllm.serving.http.limits import AdmissionLimits
from jaxllm.serving.http.state import ServerState, server_of
from jaxllm.serving.http.submission import respond, try_grammar
from jaxllm.serving.openai.generation.parameters import recommended_max_tokens, with_transfer
from jaxllm.serving.openai.generation.validation import check_generation, check_max_tokens, checked_priority
from jaxllm.serving.openai.protocol.generation import GenerationRequest
from jaxllm.serving.pooling.inputs import PoolingInputs
from jaxllm.serving.text.input_processor import InputProcessor, TextRequest
from jaxllm.serving.text.prompts import ParsedPrompt
from jaxllm.serving.token_api.protocol import TokensRequest
from jaxllm.serving.token_api.writer import TokensWriter

PARAMS = "sampling_params"
_NOT_GIVEN = (
    "beam_search",
    "bad_words_token_ids",
    "output_kind",
    "reasoning_end_token_ids",
    "reasoning_closing_token_ids",
    "predicted_token_ids",
)
"""Fields of `SamplingParams` that are made of others, or have a place of their own in the request."""


async def generate_tokens(request: Request) -> Response:
    """Continue token ids by token ids, or by text.

    This is vLLM's /inference/v1/generate; the /render of chats, messages, responses and completions makes such
    requests.
    """
    server = server_of(request)
    server.check_accepting()
    body = await server.bodies.read(request, TokensRequest)
    if body.output_mode == "text" or body.sampling_params.get("stop"):
        # Both need text: where there is none, that is said before anything is computed.
        _ = server.tokenizer
    identity = identify(request, server, body, "generate-tokens")
    made = await _prepare(request, server, body, identity.engine_ids)
    return await respond(request, server, [made], TokensWriter(server, body, identity, made))


async def _prepare(
    request: Request, server: ServerState, body: TokensRequest, engine_ids: Sequence[str]
) -> TextRequest:
    with _naming():
        params = await server.bodies.work(request, lambda: _params(body, server.llm.default_params))
        priority = _check(body, params, server.limits)
        if params.structured_outputs is not None:
            await try_grammar(request, server, params)
        return await server.llm.run_text(partial(_build, server.llm.inputs, body, params, engine_ids, priority))


@contextmanager
def _naming() -> Iterator[None]:
    """Name the fields of errors raised inside as the request does."""
    try:
        yield
    except RequestError as error:
        name = error.parameter
        if name == "prompt":
            error.parameter = "token_ids"
        elif name not in TokensRequest.__struct_fields__:
            error.parameter = PARAMS if name is None else f"{PARAMS}.{name}"
        raise


def _params(body: TokensRequest, defaults: SamplingParams) -> SamplingParams:
    """The parameters; only the length is the model's where it is left out, as in vLLM. Raises `RequestError`."""
    given = {"max_tokens": recommended_max_tokens(defaults), **body.sampling_params}
    for name in _NOT_GIVEN:
        if given.pop(name, None) is not None:
            hint = "as a field next to sampling_params" if name in TokensRequest.__struct_fields__ else "not here"
            raise RequestError(f"{PARAMS}.{name}: give it {hint}", name)
    params = SamplingParams.from_dict(given)
    if body.output_mode == "text" and not params.detokenize:
        raise RequestError(f"{PARAMS}.detokenize=false cannot be combined with output_mode='text'", "detokenize")
    if body.kv_transfer_params:
        params.extra_args = with_transfer(params.extra_args, body.kv_transfer_params, stream=bool(body.stream))
    needs_text = body.output_mode == "text" or bool(params.stop)
    return msgspec.structs.replace(params, detokenize=needs_text, reasoning_end_token_ids=body.reasoning_end_token_ids)


def _check(body: TokensRequest, params: SamplingParams, limits: AdmissionLimits) -> int:
    """The priority. Raises `RequestError` for what does not go together, or is more than the server gives."""
    asked = GenerationRequest(
        stream=body.stream,
        stream_options=body.stream_options,
        cache_salt=body.cache_salt,
        n=params.n,
        best_of=params.best_of,
        prompt_logprobs=params.prompt_logprobs,
    )
    check_generation(asked, limits, logprobs=params.logprobs)
    check_max_tokens("max_tokens", params.max_tokens, limits)
    if body.stream:
        params.check_streamable()
    if not body.token_ids:
        raise RequestError("token_ids: the list is empty", "token_ids")
    return checked_priority(body.priority, limits)


def _build(
    inputs: InputProcessor | PoolingInputs,
    body: TokensRequest,
    params: SamplingParams,
    engine_ids: Sequence[str],
    priority: int,
) -> TextRequest:
    assert isinstance(inputs, InputProcessor)
    (made,) = inputs.build(
        [ParsedPrompt(None, body.token_ids, body.cache_salt)],
        [params],
        engine_ids,
        [priority],
        stream=bool(body.stream),
        add_special_tokens=False,
    )
    return made
