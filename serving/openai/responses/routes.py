"""The routes of the Responses API."""

import secrets
import time
from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from jaxllm.errors import RequestError, quoted
from jaxllm.serving.http import errors
from jaxllm.serving.http.identity import identify, model_name
from jaxllm.serving.http.responses import json_response
from jaxllm.serving.http.state import ServerState, server_of
from jaxllm.serving.http.submission import respond, submit
from jaxllm.serving.openai.chat.plan import ChatCall
from jaxllm.serving.openai.generation.logprobs import LogprobFormat
from jaxllm.serving.openai.generation.parameters import num_alternatives, shows_token_ids
from jaxllm.serving.openai.protocol.response_answers import DeletedResponse, InputTokens, ItemPage, ModelResponse
from jaxllm.serving.openai.protocol.responses import LOGPROBS, InputItemsQuery, ResponsesRequest, RetrieveQuery
from jaxllm.serving.openai.responses.background import BackgroundRun, LogStream
from jaxllm.serving.openai.responses.items import from_output, listed, read_input
from jaxllm.serving.openai.responses.prepare import check, count, prepare, read_turn
from jaxllm.serving.openai.responses.store import EventLog, Stored
from jaxllm.serving.openai.responses.tools import callable_tools
from jaxllm.serving.openai.responses.writer import ResponseWriter
from jaxllm.serving.openai.stores import Stores, stores_of
from jaxllm.serving.tenancy.access import owner_of

_PAGE = 20
_LONGEST_PAGE = 100


async def create_response(request: Request) -> Response:
    """Answer a conversation, with the model's reasoning, text and calls as items."""
    server = server_of(request)
    server.check_accepting()
    stores = stores_of(request.app)
    body = await server.bodies.read(request, ResponsesRequest)
    identity = identify(request, server, body, "resp")
    check(body, stores.responses)
    owner = owner_of(request).name
    items = await server.bodies.work(request, lambda: read_input(body.input))
    turn = read_turn(body, items, stores.responses, owner)
    call = await prepare(request, server, body, turn, identity.engine_ids)
    stored = Stored(_begun(body, identity.model, call, stored=stores.responses.enabled), turn, owner)
    writer = ResponseWriter(
        stored.response,
        call,
        streams=bool(body.stream),
        logprobs=_logprob_format(server, body),
        on_end=partial(_keep, stores, stored),
        tools={tool.shown: tool for tool in callable_tools(body)},
        messages=bool(body.enable_response_messages),
    )
    if body.background:
        return _run_on(request, stored, call, writer, stream=bool(body.stream))
    return await respond(request, server, [call.request], writer, first=writer.begin(), last=b"", failure=writer.fail)


async def count_input_tokens(request: Request) -> Response:
    """Count the tokens of a conversation, as the model would read it."""
    server = server_of(request)
    stores = stores_of(request.app)
    body = await server.bodies.read(request, ResponsesRequest)
    model_name(server, body.model)
    check(body, stores.responses)
    items = await server.bodies.work(request, lambda: read_input(body.input))
    turn = read_turn(body, items, stores.responses, owner_of(request).name)
    return json_response(InputTokens(input_tokens=await count(request, server, body, turn)))


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


def _run_on(request: Request, stored: Stored, call: ChatCall, writer: ResponseWriter, *, stream: bool) -> Response:
    (results,) = submit(request, server_of(request), [call.request])
    if stream:
        stored.log = EventLog()
    queued = json_response(stored.response)
    run = BackgroundRun(results, writer, request.scope["request_id"], stored.log)
    stored.cancel = run.cancel
    stores_of(request.app).responses.put(stored)
    return queued if stored.log is None else _log_stream(request, stored.log, 0)


def _log_stream(request: Request, log: EventLog, begin: int) -> LogStream:
    return LogStream(log, begin, server_of(request).options.sse_keep_alive_interval)


def _stored(request: Request) -> Stored:
    name = request.path_params["response_id"]
    stored = stores_of(request.app).responses.get(owner_of(request).name, name)
    if stored is None:
        raise errors.unknown_response(name, "response_id")
    return stored


async def retrieve_response(request: Request) -> Response:
    """Tell a stored response, or what there is of it yet."""
    query = server_of(request).bodies.read_query(request, RetrieveQuery)
    stored = _stored(request)
    if not query.stream:
        if query.starting_after is not None:
            raise RequestError("starting_after requires stream=true", "starting_after")
        return json_response(stored.response)
    if stored.log is None:
        raise RequestError(
            "stream: only a response created with background=true and stream=true can be streamed again",
            "stream",
        )
    return _log_stream(request, stored.log, 0 if query.starting_after is None else query.starting_after + 1)


async def cancel_response(request: Request) -> Response:
    """End a response that runs in the background; one that has ended stays as it is."""
    stored = _stored(request)
    if stored.cancel is None:
        raise RequestError("only a response created with background=true can be cancelled", "response_id")
    stored.cancel()
    return json_response(stored.response)


async def delete_response(request: Request) -> Response:
    """Forget a response, and end it if it still runs."""
    stored = _stored(request)
    if stored.cancel is not None:
        stored.cancel()
    stores_of(request.app).responses.delete(stored)
    return json_response(DeletedResponse(id=stored.response.id))


async def list_input_items(request: Request) -> Response:
    """List the items that a stored response answers, those of its own request."""
    query = server_of(request).bodies.read_query(request, InputItemsQuery)
    limit = _PAGE if query.limit is None else query.limit
    if not 1 <= limit <= _LONGEST_PAGE:
        raise RequestError(f"limit={limit}: must be from 1 to {_LONGEST_PAGE}", "limit")
    items = list(_stored(request).turn.given)
    if query.order != "asc":
        items.reverse()
    if query.after is not None:
        names = [item.id for item in items]
        if query.after not in names:
            raise RequestError(f"after={quoted(query.after)}: there is no such item", "after")
        items = items[names.index(query.after) + 1 :]
    data = [listed(item) for item in items[:limit]]
    first, last = (data[0]["id"], data[-1]["id"]) if data else ("", "")
    return json_response(ItemPage(data=data, first_id=first, last_id=last, has_more=len(items) > limit))
