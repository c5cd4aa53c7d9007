"""The routes of responses that are stored, and of conversations that are only counted."""

from starlette.requests import Request
from starlette.responses import Response

from jaxllm.errors import RequestError, quoted
from jaxllm.serving.http import errors
from jaxllm.serving.http.identity import model_name
from jaxllm.serving.http.responses import json_response
from jaxllm.serving.http.state import server_of
from jaxllm.serving.openai.protocol.response_answers import DeletedResponse, InputTokens, ItemPage
from jaxllm.serving.openai.protocol.responses import InputItemsQuery, ResponsesRequest, RetrieveQuery
from jaxllm.serving.openai.responses.create import log_stream
from jaxllm.serving.openai.responses.items import listed, read_input
from jaxllm.serving.openai.responses.prepare import check, count, read_turn
from jaxllm.serving.openai.responses.store import Stored
from jaxllm.serving.openai.stores import stores_of
from jaxllm.serving.tenancy.access import owner_of

_PAGE = 20
_LONGEST_PAGE = 100


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
    return log_stream(request, stored.log, 0 if query.starting_after is None else query.starting_after + 1)


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
