"""What the router and the OpenAPI document know of a route."""

from dataclasses import dataclass
from typing import Any, Literal

from jaxllm.serving.http.error_response import ErrorResponse
from jaxllm.serving.http.errors import Handler
from jaxllm.serving.http.state import for_runner


@dataclass(frozen=True, kw_only=True)
class Operation:
    """What one path does.

    `request` and `response` are the bodies, None where there is none; with `stream`, the response may also be events of
    this kind. `parts` are bodies inside these, which their types do not tell; `query` has the query parameters;
    `errors` is the body of errors. `public` operations need no key. Some are for a server whose model generates, or
    pools, as `runner` says. With `upload`, the body is a form with a file. `name` tells operations of the same handler
    apart.
    """

    path: str
    handler: Handler
    tag: str
    methods: tuple[str, ...] = ("GET",)
    request: Any = None
    response: Any = None
    stream: Any = None
    parts: tuple[Any, ...] = ()
    errors: Any = ErrorResponse
    query: Any = None
    content_type: str = "application/json"
    public: bool = False
    upload: bool = False
    runner: Literal["generate", "pooling"] | None = None
    name: str = ""

    @property
    def bodies(self) -> tuple[Any, ...]:
        """All bodies, and what is inside them."""
        direct = (self.request, self.response, self.stream, self.errors)
        return (*(kind for kind in direct if kind is not None), *self.parts)

    @property
    def checked_handler(self) -> Handler:
        """The handler, behind a check that the model is of the right kind."""
        return self.handler if self.runner is None else for_runner(self.handler, self.runner)
