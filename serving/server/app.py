"""The web application: routes, and what stands before them."""

from typing import Any

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware

from jaxllm.serving.http.body.ignored_fields import IGNORED_HEADER
from jaxllm.serving.http.errors import HttpError
from jaxllm.serving.http.limits import body_size
from jaxllm.serving.http.middleware.access_log import AccessLog
from jaxllm.serving.http.middleware.body_size import BodyLimit
from jaxllm.serving.http.middleware.custom import load_middleware, load_router
from jaxllm.serving.http.middleware.keys import ApiKeys
from jaxllm.serving.http.middleware.measure import MeasureRequests
from jaxllm.serving.http.middleware.request_ids import HEADER, RequestIds
from jaxllm.serving.http.operation import guarded, handle
from jaxllm.serving.http.state import ServerState
from jaxllm.serving.openai.stores import Stores
from jaxllm.serving.server.interfaces import OPERATIONS, ROUTERS
from jaxllm.serving.server.openapi import OPENAPI_URL, openapi
from jaxllm.serving.server.pages.views import DOCS, show_landing
from jaxllm.serving.ui.files import assets
from jaxllm.serving.ui.live import LiveFeed
from jaxllm.serving.ui.routes import PAGE

_FORM_BYTES = 65536


class Application(FastAPI):
    """The server's application; an operator adds routers and middleware as to any other of FastAPI's."""

    def openapi(self) -> dict[str, Any]:
        """The OpenAPI document of all routes, whose bodies are described by the types that decode and encode them."""
        if self.openapi_schema is None:
            server: ServerState = self.state.server
            self.openapi_schema = openapi(
                with_keys=server.access.needs_key, strict=server.options.strict_fields, routes=self.routes
            )
        return self.openapi_schema


def create_app(state: ServerState) -> Application:
    """The application for a running engine.

    Raises `ConfigError` for middleware, routers or a folder that cannot be used.
    """
    options = state.options
    app = Application(
        openapi_url=None if options.disable_docs else OPENAPI_URL,
        # The page of FastAPI's loads its scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        # Redirecting /v1/models/ would hide a wrong path from the client.
        redirect_slashes=False,
        middleware=_middleware(state),
        exception_handlers={HTTPException: handle, HttpError: handle, Exception: handle},
    )
    for router in ROUTERS:
        app.include_router(router)
    app.add_route("/", guarded(show_landing), include_in_schema=False)
    if options.ui:
        for path, handler in PAGE.items():
            app.add_route(path, guarded(handler), include_in_schema=False)
    if not options.disable_docs:
        for path, handler in DOCS.items():
            app.add_route(path, guarded(handler), include_in_schema=False)
    for path in options.include_router:
        app.include_router(load_router(path))
    app.state.server = state
    app.state.operations = OPERATIONS
    app.state.stores = Stores.of(state)
    app.state.live = LiveFeed(state)
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
    chain.append(
        Middleware(ApiKeys, access=state.access, public_paths=public | {"/", *DOCS, *(assets() if options.ui else ())})
    )
    # The form around a file takes some bytes too.
    file, sound = (options.max_file_size, "--max-file-size"), (options.max_audio_bytes, "--max-audio-bytes")
    largest = {each.path: sound if each.runner == "transcribe" else file for each in OPERATIONS if each.upload}
    uploads = {path: (size + _FORM_BYTES, flag) for path, (size, flag) in largest.items()}
    chain.append(Middleware(BodyLimit, limit=body_size(options, state.llm.info), uploads=uploads))
    return chain + [load_middleware(path) for path in options.middleware]
