"""The web application: routes, and what stands before them."""

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import Route

from jaxllm.serving.http.body.ignored_fields import IGNORED_HEADER
from jaxllm.serving.http.errors import HttpError
from jaxllm.serving.http.guard import guarded, handle
from jaxllm.serving.http.limits import body_size
from jaxllm.serving.http.middleware.access_log import AccessLog
from jaxllm.serving.http.middleware.body_size import BodyLimit
from jaxllm.serving.http.middleware.custom import load_middleware
from jaxllm.serving.http.middleware.keys import ApiKeys
from jaxllm.serving.http.middleware.measure import MeasureRequests
from jaxllm.serving.http.middleware.request_ids import HEADER, RequestIds
from jaxllm.serving.http.router import make_routes
from jaxllm.serving.http.state import ServerState
from jaxllm.serving.openai.stores import Stores
from jaxllm.serving.server.interfaces import OPERATIONS
from jaxllm.serving.server.openapi import show_document
from jaxllm.serving.server.pages.views import PUBLIC_PAGES, show_docs, show_landing

_FORM_BYTES = 65536

__all__ = ["ServerState", "create_app"]


def create_app(state: ServerState) -> Starlette:
    """The application for a running engine. Raises `ConfigError` for middleware or a folder that cannot be used."""
    routes = make_routes(OPERATIONS)
    routes.append(Route("/", guarded(show_landing)))
    if not state.options.disable_docs:
        routes += [Route("/docs", guarded(show_docs)), Route("/openapi.json", guarded(show_document))]
    app = Starlette(
        routes=routes,
        middleware=_middleware(state),
        exception_handlers={HTTPException: handle, HttpError: handle, Exception: handle},
    )
    # Redirecting /v1/models/ would hide a wrong path from the client.
    app.router.redirect_slashes = False
    app.state.server = state
    app.state.operations = OPERATIONS
    app.state.stores = Stores.of(state)
    return app


def _middleware(state: ServerState) -> list[Middleware]:
    """From the outside in: the operator's own sees only requests with a key."""
    options = state.options
    paths = frozenset(operation.path for operation in OPERATIONS)
    chain = [
        Middleware(MeasureRequests, metrics=state.metrics.http, paths=paths),
        Middleware(RequestIds, always=options.enable_request_id_headers),
    ]
    if options.access_log:
        chain.append(Middleware(AccessLog))
    if options.allowed_origins:
        cors = Middleware(
            CORSMiddleware,
            allow_origins=options.allowed_origins,
            allow_methods=options.allowed_methods,
            allow_headers=options.allowed_headers,
            allow_credentials=options.allow_credentials,
            expose_headers=[HEADER, IGNORED_HEADER, "Retry-After"],
        )
        chain.append(cors)
    public = frozenset(operation.path for operation in OPERATIONS if operation.public)
    chain.append(Middleware(ApiKeys, access=state.access, public_paths=public | PUBLIC_PAGES))
    # The form around a file takes some bytes too.
    uploads = {each.path: options.max_file_size + _FORM_BYTES for each in OPERATIONS if each.upload}
    chain.append(Middleware(BodyLimit, limit=body_size(options, state.llm.info), uploads=uploads))
    return chain + [load_middleware(path) for path in options.middleware]
