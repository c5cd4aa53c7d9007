"""FastAPI's routers, made of operations."""

from collections.abc import Sequence

from fastapi import APIRouter
from starlette.responses import Response

from jaxllm.serving.http.guard import guarded
from jaxllm.serving.http.operation import Operation


def make_router(operations: Sequence[Operation]) -> APIRouter:
    """A router with a route for each method of each operation. Handlers read bodies and write responses themselves."""
    router = APIRouter()
    for operation in operations:
        assert operation.handler.__doc__ is not None
        name = operation.name or operation.handler.__name__
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
