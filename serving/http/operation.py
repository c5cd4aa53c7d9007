"""Operations: what the router and the OpenAPI document know of a route, and what stands around its handler.

Every exception of a handler becomes a response, in the form of its operation.
"""

import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import msgspec
from fastapi import APIRouter
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from jaxllm.errors import nearest
from jaxllm.serving.http.body.ignored_fields import IGNORED, IGNORED_HEADER
from jaxllm.serving.http.deadline import Deadline, begin_deadline
from jaxllm.serving.http.error_form import OPENAI_ERRORS, ErrorForm
from jaxllm.serving.http.errors import CLIENT_GONE, HttpError, describe, not_operator, routing_error, wrong_runner
from jaxllm.serving.http.state import server_of
from jaxllm.serving.tenancy.access import is_operator

REJECTED = "jaxllm.rejected"
"""In the scope of a request that was not taken for now: why."""
_LONGEST_PATH = 256
"""Characters of an unknown path that are compared with the known ones."""

Handler = Callable[[Request], Awaitable[Response]]
Runner = Literal["generate", "pooling", "transcribe"]


@dataclass(frozen=True, kw_only=True)
class Operation:
    """The operations of one path.

    `request` and `response` are the bodies, None where there is none; with `stream`, the response may also be events of
    this kind. `parts` are bodies inside these, which their types do not tell; `query` has the query parameters;
    `errors` is the form of errors here, and of unknown paths below. `public` operations need no key. Requests of a
    batch may go to `batch` operations. Some are for a server whose model generates, pools or transcribes, as `runner`
    says. With `upload`, the body is a form with a file, and the fields `form` if it has others than a file's purpose.
    `refusable` ones may be answered with status 400 though they have no body.
    `operator` ones concern other clients: where there are keys, they need the operator's.
    `timed` ones, and all for a kind of model, have a deadline.
    `name` tells operations of the same handler apart.
    """

    path: str
    handler: Handler
    tag: str
    methods: tuple[str, ...] = ("GET",)
    request: Any = None
    response: Any = None
    stream: Any = None
    parts: tuple[Any, ...] = ()
    errors: ErrorForm = OPENAI_ERRORS
    query: Any = None
    content_type: str = "application/json"
    public: bool = False
    batch: bool = False
    upload: bool = False
    refusable: bool = False
    operator: bool = False
    form: Any = None
    runner: Runner | None = None
    timed: bool = False
    name: str = ""

    @property
    def bodies(self) -> tuple[Any, ...]:
        """All bodies, and what is inside them."""
        direct = (self.request, self.form, self.response, self.stream, self.errors.body)
        return (*(kind for kind in direct if kind is not None), *self.parts)

    @property
    def checked_handler(self) -> Handler:
        """The handler, after checks of the key, and that the model is of the right kind."""
        if self.operator:
            return _require_operator(self.handler)
        handler = self.handler if self.runner is None else _require_runner(self.handler, self.runner)
        return timed(handler) if self.timed or self.runner is not None else handler

    @property
    def allowed(self) -> tuple[str, ...]:
        """The methods that the router takes: HEAD where there is GET, too."""
        return (*self.methods, "HEAD") if "GET" in self.methods else self.methods


def operations_of(app: Starlette) -> tuple[Operation, ...]:
    """The operations of a server's application, found as `app.state.operations`."""
    return getattr(app.state, "operations", ())


def batch_urls(operations: Sequence[Operation]) -> tuple[str, ...]:
    """Paths that requests of a batch may go to."""
    return tuple(each.path for each in operations if each.batch)


def _require_operator(handler: Handler) -> Handler:
    """A handler that answers with an error where the key is a client's."""

    async def check(request: Request) -> Response:
        if not is_operator(request.scope):
            raise not_operator(request.url.path)
        return await handler(request)

    return check


def _require_runner(handler: Handler, runner: Runner) -> Handler:
    """A handler that answers with an error, saying what to do, where the model is of another kind."""

    async def check(request: Request) -> Response:
        info = server_of(request).llm.info
        found: Runner = "pooling" if info.pooling is not None else "transcribe" if info.transcribes else "generate"
        if found != runner:
            raise wrong_runner(request.url.path, info.model, found, runner)
        return await handler(request)

    return check


def timed(handler: Handler) -> Handler:
    """A handler with a deadline: the server's, and what the body asks for."""

    async def hold(request: Request) -> Response:
        server = server_of(request)
        count = server.metrics.http.time_out
        deadline = Deadline(server.options.request_timeout, server.llm.engines.expire, count)
        async with begin_deadline(request.scope, deadline).enforced():
            return await handler(request)

    return hold


def make_router(operations: Sequence[Operation]) -> APIRouter:
    """A router with a route for each method of each operation. Handlers read bodies and write responses themselves."""
    router = APIRouter()
    for operation in operations:
        assert operation.handler.__doc__ is not None
        name = operation.name or operation.handler.__name__
        for kind in (operation.request, operation.form, operation.query):
            # Large bodies are decoded in a thread: msgspec 0.22 crashes where two decode a type for the first time.
            msgspec.json.Decoder(kind)
        for method in operation.methods:
            router.add_api_route(
                operation.path,
                guarded(operation.checked_handler),
                methods=[method],
                operation_id=f"{name}_{method.lower()}",
                summary=operation.handler.__doc__.split("\n")[0],
                tags=[operation.tag],
                response_class=Response,
            )
    for operation in operations:
        if "GET" in operation.methods:
            # The server leaves the body out.
            endpoint = guarded(operation.checked_handler)
            router.add_api_route(operation.path, endpoint, methods=["HEAD"], include_in_schema=False)
    return router


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
            if each.startswith("/v1/messages"):
                return f"; did you mean {each!r}? The base URL of Anthropic's clients ends without /v1"
            return f"; did you mean {each!r}? A client's base URL ends with /v1"
    return nearest(plain, [each for each in known if len(each) > 1], alike=0.8)


def _path(request: Request) -> str:
    path: str = request.scope["path"]
    return path.removeprefix(request.scope.get("root_path", ""))
