"""Handlers whose exceptions become responses, in the form of their operation."""

import re
from collections.abc import Sequence

import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from jaxllm.errors import nearest
from jaxllm.serving.http.body.ignored_fields import IGNORED, IGNORED_HEADER
from jaxllm.serving.http.error_form import OPENAI_ERRORS, ErrorForm
from jaxllm.serving.http.errors import CLIENT_GONE, HttpError, describe, routing_error
from jaxllm.serving.http.operation import Handler, Operation, operations_of

REJECTED = "jaxllm.rejected"
"""In the scope of a request that was not taken for now: why."""
_LONGEST_PATH = 256
"""Of an unknown path, to be compared with the known ones."""


def guarded(handler: Handler) -> Handler:
    """A handler whose every exception becomes a response, and whose responses name the fields that were ignored."""

    async def guard(request: Request) -> Response:
        try:
            response = await handler(request)
        except Exception as error:  # noqa: BLE001  (whatever it is, the client gets an answer and the log the rest)
            response = response_to(error, request)
        ignored = request.scope.get(IGNORED)
        names = ignored.header() if ignored is not None else None
        if names:
            response.headers[IGNORED_HEADER] = names
        return response

    return guard


async def handle(request: Request, error: Exception) -> Response:
    """The response to an exception, in the shape that Starlette asks for."""
    return response_to(error, request)


def response_to(error: Exception, request: Request) -> Response:
    """The response to an exception; what nobody expected is logged."""
    if isinstance(error, ClientDisconnect):
        return Response(status_code=CLIENT_GONE)
    request_id = str(request.scope.get("request_id", "unknown"))
    known = _routing_error(error, request) if isinstance(error, HTTPException) else describe(error, request_id)
    if known.rejected is not None:
        request.scope[REJECTED] = known.rejected
    form = _form_for(_path(request), operations_of(request.app))
    body = msgspec.json.encode(form.answer(known, request_id))
    return Response(body, form.status(known), form.headers(known, request_id), "application/json")


def _form_for(path: str, operations: Sequence[Operation]) -> ErrorForm:
    """The form of the operation at this path, or above it."""
    found = (each.errors for each in operations if path == each.path or path.startswith(f"{each.path}/"))
    return next(found, OPENAI_ERRORS)


def _routing_error(error: HTTPException, request: Request) -> HttpError:
    operations = operations_of(request.app)
    route = request.scope.get("route")
    allowed = [method for each in operations if route and each.path == route.path for method in each.allowed]
    paths = [each.path for each in operations]
    paths += [route.path for route in request.app.routes if isinstance(route, Route)]
    hint = _right_path(_path(request)[:_LONGEST_PATH], paths)
    return routing_error(error, request.method, request.url.path, hint=hint, allowed=allowed)


def _right_path(path: str, known: Sequence[str]) -> str:
    """A hint for a path that is nearly a known one: `"; did you mean '/v1/models'?"`."""
    plain = re.sub(r"^(/v1)+(?=/)", "/v1", re.sub("//+", "/", path)).rstrip("/")
    for each in (plain, f"/v1{plain}", plain.removeprefix("/v1"), plain.removeprefix("/api")):
        # A path with a part of any kind is no hint: too much is like it.
        if each != path and each in known:
            return f"; did you mean {each!r}? A client's base URL ends with /v1"
    return nearest(plain, [each for each in known if len(each) > 1], alike=0.8)


def _path(request: Request) -> str:
    path: str = request.scope["path"]
    return path.removeprefix(request.scope.get("root_path", ""))
