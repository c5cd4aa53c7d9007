"""Routes made of operations."""

from collections.abc import Mapping, Sequence

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from jaxllm.serving.http.guard import guarded
from jaxllm.serving.http.middleware.measure import HANDLER
from jaxllm.serving.http.operation import Handler, Operation


def make_routes(operations: Sequence[Operation]) -> list[Route]:
    """For the router: one route per path, so that it knows all methods of each."""
    by_path: dict[str, dict[str, Handler]] = {}
    for operation in operations:
        handlers = by_path.setdefault(operation.path, {})
        handlers.update(dict.fromkeys(operation.methods, operation.checked_handler))
    return [
        Route(path, guarded(_by_method(path, handlers)), methods=list(handlers)) for path, handlers in by_path.items()
    ]


def _by_method(path: str, handlers: Mapping[str, Handler]) -> Handler:
    name = path.replace(":path}", "}")

    async def handle(request: Request) -> Response:
        request.scope[HANDLER] = name
        # The router adds HEAD where there is GET, and the server leaves the body out.
        return await handlers["GET" if request.method == "HEAD" else request.method](request)

    return handle
