"""Sends prepared requests to the engine for their owner, and answers with the results: whole, or as events."""

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from jaxllm.engine.stats import StepStats
from jaxllm.requests.kv_transfer import is_for_another
from jaxllm.requests.owners import Owner
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.http.body.base import Answer
from jaxllm.serving.http.connection.protocol import delivery_of
from jaxllm.serving.http.deadline import deadline_of
from jaxllm.serving.http.identity import ADAPTER, client_visible_ids, requested_rank
from jaxllm.serving.http.middleware.access_log import ENGINE_REQUESTS, TRACE_ID
from jaxllm.serving.http.middleware.measure import EXEMPLAR
from jaxllm.serving.http.responses import json_response
from jaxllm.serving.http.state import ServerState
from jaxllm.serving.http.stream import EventStream, EventWriter, unless_gone
from jaxllm.serving.llm.output_stream import OutputStream
from jaxllm.serving.pooling.inputs import PooledText
from jaxllm.serving.telemetry.log_format import current_trace_id
from jaxllm.serving.tenancy.access import owner_of
from jaxllm.serving.tenancy.quotas import reserve
from jaxllm.serving.text.input_processor import TextRequest
from jaxllm.serving.text.outputs import RequestOutput

logger = logging.getLogger(__name__)

_LOAD_ASKED = "endpoint-load-metrics-format"
"""The header by which a request asks for the engines' load: TEXT or JSON."""
_LOAD_REPORTED = "endpoint-load-metrics"


class Writer(EventWriter, Protocol):
    """Writes results, whole or as events."""

    def whole(self, outputs: Sequence[RequestOutput]) -> Answer:
        """The body of a response that is not a stream, from the result of each prompt."""


async def try_grammar(request: Request, server: ServerState, params: SamplingParams) -> None:
    """Have the grammar that is asked for tried, if it is a new one; that ends when the client leaves."""
    await unless_gone(request.receive, server.llm.try_grammar(params, owner_of(request)))


def submit(request: Request, server: ServerState, requests: Sequence[TextRequest]) -> list[OutputStream]:
    """Send requests to the engine, and log them if that is asked for. Raises `QueueFullError` and `EngineError`."""
    if server.options.enable_log_requests:
        log_requests(requests, request.scope["request_id"], server.options.max_log_len)
    request.scope[ENGINE_REQUESTS] = requests
    engine, adapter = requested_rank(request), request.scope.get(ADAPTER)
    if adapter is not None:
        for child in (child for each in requests for child in each.children):
            child.lora_request = adapter
    with owned(request, server, requests) as owner:
        if server.options.isolate_prefix_cache:
            for child in (child for each in requests for child in each.children):
                # No name of an owner has a line break.
                child.cache_salt = f"{owner.name}\n{child.cache_salt or ''}"
        trace(request, server, requests)
        deadline = deadline_of(request.scope)
        if deadline is not None:
            deadline.check()
        streams = server.llm.submit(requests, engine)
    if deadline is not None:
        deadline.follow(streams)
    return streams


def trace(request: Request, server: ServerState, requests: Sequence[TextRequest | PooledText]) -> None:
    """Trace requests to the engine, where the server does that; log lines of this task name the trace from now on."""
    if server.tracing is None:
        return
    names = [client_visible_ids(each.request_id)[0] for each in requests]
    request.scope[TRACE_ID] = trace_id = server.tracing.begin(requests, names, request.headers)
    current_trace_id.set(trace_id)
    if any(each.trace is not None for each in requests):
        request.scope[EXEMPLAR] = trace_id


@contextmanager
def owned(request: Request, server: ServerState, requests: Sequence[Any]) -> Iterator[Owner]:
    """Give prepared requests to the owner of the HTTP request, and reserve of its quota what they may use.

    That is given back if the requests are not taken. Raises `QuotaError`.
    """
    owner = owner_of(request)
    for each in requests:
        for child in each.children:
            child.owner = owner
    account = server.access.account(owner)
    if account is not None:
        reserve(account, requests, server.limits.max_model_len)
    try:
        yield owner
    except Exception:
        for each in requests:
            if each.reservation is not None:
                each.reservation.cancel()
        raise


async def respond(
    request: Request, server: ServerState, requests: Sequence[TextRequest], writer: Writer, **framing: Any
) -> Response:
    """Generate, and answer as a stream or at once. Raises `QueueFullError` and `EngineError`.

    `framing` is what `EventStream` is to know besides the writer.
    """
    if not requests[0].stream:
        return await respond_whole(request, server, requests, writer.whole)
    streams = submit(request, server, requests)
    # Middleware of the operator's may want to see or change what is sent.
    direct = not server.options.middleware
    framing |= {"direct": direct, "keep_alive": server.options.sse_keep_alive_interval}
    response = EventStream(streams, writer, request.scope["request_id"], **framing)
    response.headers.update(_load_headers(request, server.llm.state()))
    return response


async def respond_whole(
    request: Request,
    server: ServerState,
    requests: Sequence[TextRequest],
    whole: Callable[[Sequence[RequestOutput]], Answer],
) -> Response:
    """Generate, and answer at once with the body that `whole` makes of each prompt's result. Raises as `respond`."""
    streams = submit(request, server, requests)
    with _kept_for_others(request, server, requests):
        try:
            outputs = await unless_gone(request.receive, _results(streams))
        finally:
            for stream in streams:
                stream.close()
        response = json_response(whole(outputs))
    response.headers.update(_load_headers(request, server.llm.state()))
    return response


@contextmanager
def _kept_for_others(request: Request, server: ServerState, requests: Sequence[TextRequest]) -> Iterator[None]:
    """What engines keep of prompts for other engines is given up if the client does not get the answer that names it.

    The engine alone cannot know: it has ended the request.
    """
    names = [child.request_id for each in requests if is_for_another(each.params) for child in each.children]
    if not names:
        yield
        return
    give_up = partial(server.llm.engines.give_up, names)
    try:
        yield
    except BaseException:
        give_up()
        raise
    delivery = delivery_of(request.scope)
    if delivery is not None:
        delivery.watch(give_up)


async def _results(streams: Sequence[OutputStream]) -> list[RequestOutput]:
    # One after the other: each is one result, which waits for its reader.
    return [await anext(stream) for stream in streams]


def _load_headers(request: Request, stats: StepStats) -> dict[str, str]:
    """The engines' load in a header, in the format that the request asks for; nothing where it asks for none we know.

    Load balancers read it (ORCA, Envoy's open load reports).
    """
    asked = request.headers.get(_LOAD_ASKED, "").upper()
    if asked not in ("TEXT", "JSON"):
        return {}
    named = {"kv_cache_usage_perc": stats.kv_usage, "num_requests_waiting": float(stats.num_waiting)}
    if asked == "JSON":
        return {_LOAD_REPORTED: f"JSON {msgspec.json.encode({'named_metrics': named}).decode()}"}
    return {_LOAD_REPORTED: f"TEXT {', '.join(f'named_metrics.{name}={value}' for name, value in named.items())}"}


def log_requests(requests: Sequence[TextRequest | PooledText], request_id: str, longest: int | None) -> None:
    """Write a line about each request, with at most `longest` characters of its prompt."""
    for request in requests:
        prompt = request.prompt if request.prompt is not None else str(request.prompt_token_ids)
        logger.info(
            "request %s: %d prompt tokens, %s, prompt: %r",
            request.request_id,
            len(request.prompt_token_ids),
            request.params,
            prompt[:longest],
            extra={"request_id": request_id},
        )
