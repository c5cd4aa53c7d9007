"""Responses are created: answered at once, as a stream, or in the background; the last also after a restart."""

import secrets
import time
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from jaxllm.serving.http.deadline import shorten_deadline
from jaxllm.serving.http.identity import Identity, identify
from jaxllm.serving.http.responses import json_response
from jaxllm.serving.http.state import ServerState, server_of
from jaxllm.serving.http.submission import respond, submit
from jaxllm.serving.openai.chat.plan import ChatCall
from jaxllm.serving.openai.generation.logprobs import LogprobFormat
from jaxllm.serving.openai.generation.parameters import num_alternatives, shows_token_ids
from jaxllm.serving.openai.protocol.response_answers import ModelResponse
from jaxllm.serving.openai.protocol.responses import LOGPROBS, ResponsesRequest
from jaxllm.serving.openai.responses.background import BackgroundRun, LogStream
from jaxllm.serving.openai.responses.items import from_output, read_input
from jaxllm.serving.openai.responses.prepare import check, prepare, read_turn
from jaxllm.serving.openai.responses.replay import items_of
from jaxllm.serving.openai.responses.store import Asked, EventLog, Stored, Turn
from jaxllm.serving.openai.responses.tools import callable_tools
from jaxllm.serving.openai.responses.writer import ResponseWriter
from jaxllm.serving.openai.stores import Stores, stores_of
from jaxllm.serving.tenancy.access import owner_of


async def create_response(request: Request) -> Response:
    """Answer a conversation, with the model's reasoning, text and calls as items."""
    server = server_of(request)
    server.check_accepting()
    stores = stores_of(request.app)
    body = await server.bodies.read(request, ResponsesRequest)
    identity = identify(request, server, body, "resp")
    check(body, stores.responses)
    items = await server.bodies.work(request, lambda: read_input(body.input))
    turn = read_turn(body, items, stores.responses, owner_of(request).name)
    return await _answer(request, body, identity, turn)


async def create_again(request: Request, earlier: Stored) -> Response:
    """Begin a response again that an earlier server was making in the background; `request` is its owner's."""
    assert earlier.asked is not None
    body = earlier.asked.body
    shorten_deadline(request.scope, body)
    identity = identify(request, server_of(request), body, "resp")
    return await _answer(request, body, identity, earlier.turn, earlier)


async def _answer(
    request: Request, body: ResponsesRequest, identity: Identity, turn: Turn, earlier: Stored | None = None
) -> Response:
    server, stores, owner = server_of(request), stores_of(request.app), owner_of(request)
    lasts = bool(body.background) and stores.database is not None
    if lasts and body.seed in (None, -1):
        # Made again by another server, it has the same tokens.
        body.seed = secrets.randbits(62)
    call = await prepare(request, server, body, turn, identity.engine_ids)
    stored = Stored(_begun(body, identity.model, call, stored=stores.responses.enabled), turn, owner.name)
    if lasts:
        stored.asked = Asked(body=body, owner=owner, request_id=request.scope["request_id"])
    if earlier is not None:
        stored.response.id, stored.response.created_at = earlier.response.id, earlier.response.created_at
        stored.log, stored.num_events, stored.progress = earlier.log, earlier.num_events, earlier.progress
    elif body.background and body.stream:
        stored.log = EventLog()
    writer = ResponseWriter(
        stored.response,
        call,
        streams=bool(body.stream),
        logprobs=_logprob_format(server, body),
        on_end=partial(_keep, stores, stored),
        tools={tool.shown: tool for tool in callable_tools(body)},
        messages=bool(body.enable_response_messages),
        begun=() if stored.log is None else items_of(stored.log.events),
    )
    if body.background:
        return await _run_on(request, stored, call, writer)
    answer = await respond(request, server, [call.request], writer, first=writer.begin(), last=b"", failure=writer.fail)
    if not body.stream:
        await stores.written()
    return answer


def _begun(body: ResponsesRequest, model: str, call: ChatCall, *, stored: bool) -> ModelResponse:
    """The response at its beginning."""
    params = call.request.params
    text_format = msgspec.to_builtins(body.text.format) if body.text and body.text.format else {"type": "text"}
    reasoning = body.reasoning
    return ModelResponse(
        id=f"resp_{secrets.token_hex(16)}",
        created_at=int(time.time()),
        status="queued" if body.background else "in_progress",
        background=bool(body.background),
        instructions=body.instructions,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        metadata=body.metadata or {},
        model=model,
        output=[],
        parallel_tool_calls=body.parallel_tool_calls is not False,
        previous_response_id=body.previous_response_id,
        prompt_cache_key=body.prompt_cache_key,
        reasoning={"effort": reasoning and reasoning.effort, "summary": reasoning and reasoning.summary},
        safety_identifier=body.safety_identifier,
        store=stored and body.store is not False,
        temperature=params.temperature,
        text={"format": text_format, "verbosity": "medium"},
        tool_choice="auto" if body.tool_choice is None else body.tool_choice,
        tools=[_listed_tool(tool) for tool in body.tools or ()],
        top_logprobs=body.top_logprobs or 0,
        top_p=params.top_p,
        truncation=body.truncation or "disabled",
        user=body.user,
    )


def _listed_tool(tool: dict[str, Any]) -> dict[str, Any]:
    missing = {"description": None, "parameters": None, "strict": None} if tool.get("type") == "function" else {}
    return {**missing, **{name: value for name, value in tool.items() if value is not None}}


def _logprob_format(server: ServerState, body: ResponsesRequest) -> LogprobFormat | None:
    if LOGPROBS not in (body.include or ()):
        return None
    as_token_ids = shows_token_ids(server.options, body)
    alternatives = None if body.logprob_token_ids else num_alternatives(body.top_logprobs, server.limits.vocab_size)
    return LogprobFormat(server.token_bytes, alternatives=alternatives, as_token_ids=as_token_ids)


def _keep(stores: Stores, stored: Stored) -> None:
    """A response has ended: keep it, if it is to be kept."""
    if stored.response.store:
        stored.turn.made = [from_output(item) for item in stored.response.output]
        stores.responses.put(stored)


async def _run_on(request: Request, stored: Stored, call: ChatCall, writer: ResponseWriter) -> Response:
    """Raises `OSError` where the disk does not take what another server would need to go on."""
    stores = stores_of(request.app)
    (results,) = submit(request, server_of(request), [call.request])
    queued = json_response(stored.response)
    stores.responses.put(stored)
    run = BackgroundRun(results, writer, request.scope["request_id"], stores.responses, stored)
    stored.cancel = run.cancel
    try:
        await stores.written(strictly=True)
    except OSError:
        run.cancel()
        stores.responses.delete(stored)
        raise
    return queued if stored.log is None else log_stream(request, stored.log, 0)


def log_stream(request: Request, log: EventLog, begin: int) -> LogStream:
    """The events of a log from a place on."""
    return LogStream(log, begin, server_of(request).options.sse_keep_alive_interval)
