"""What the router and the OpenAPI document know of a route."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response

from jaxllm.serving.http.error_form import OPENAI_ERRORS, ErrorForm
from jaxllm.serving.http.errors import wrong_runner
from jaxllm.serving.http.state import server_of

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, kw_only=True)
class Operation:
    """What one path does.

    `request` and `response` are the bodies, None where there is none; with `stream`, the response may also be events of
    this kind. `parts` are bodies inside these, which their types do not tell; `query` has the query parameters;
    `errors` is the form of errors here, and of unknown paths below. `public` operations need no key. Requests of a
    batch may go to `batch` operations. Some are for a server whose model generates, or pools, as `runner` says. With
    `upload`, the body is a form with a file. `name` tells operations of the same handler apart.
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
    runner: Literal["generate", "pooling"] | None = None
    name: str = ""

    @property
    def bodies(self) -> tuple[Any, ...]:
        """All bodies, and what is inside them."""
        direct = (self.request, self.response, self.stream, self.errors.body)
        return (*(kind for kind in direct if kind is not None), *self.parts)

    @property
    def checked_handler(self) -> Handler:
        """The handler, behind a check that the model is of the right kind."""
        return self.handler if self.runner is None else _for_runner(self.handler, self.runner)

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


def _for_runner(handler: Handler, runner: Literal["generate", "pooling"]) -> Handler:
    """A handler that answers with an error, saying what to do, where the model is of the other kind."""

    async def check(request: Request) -> Response:
        info = server_of(request).llm.info
        pools = info.pooling is not None
        if pools != (runner == "pooling"):
            raise wrong_runner(request.url.path, info.model, pools=pools)
        return await handler(request)

    return check
