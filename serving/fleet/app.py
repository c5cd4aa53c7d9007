"""The router's web application: its own pages, and the proxy for everything else."""

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route

from jaxllm.errors import EngineError
from jaxllm.serving.fleet.metrics import RouterMetrics, fleet_page
from jaxllm.serving.fleet.proxy import Proxy
from jaxllm.serving.fleet.servers import Servers
from jaxllm.serving.http.middleware.access_log import AccessLog
from jaxllm.serving.http.middleware.body_size import BodyLimit
from jaxllm.serving.http.middleware.keys import ApiKeys
from jaxllm.serving.http.middleware.request_ids import HEADER, RequestIds
from jaxllm.serving.http.operation import guarded
from jaxllm.serving.options.server import ServerOptions
from jaxllm.serving.tenancy.access import Access

_METRICS = "text/plain; version=0.0.4; charset=utf-8"
PROBES = ("/health", "/live", "/ready", "/readyz", "/ping")


class ServerState(msgspec.Struct, kw_only=True):
    """A server behind the router. `problem` says why it gets no requests; empty when it does."""

    name: str
    role: str
    url: str
    up: bool
    problem: str
    in_flight: int
    reads_events: bool
    """Whether what it has cached is known by its events; otherwise it is guessed."""
    cached_blocks: int | None
    """Blocks that it has cached, where that is known."""


def create_router(
    servers: Servers, proxy: Proxy, metrics: RouterMetrics, options: ServerOptions, access: Access, max_body_size: int
) -> Starlette:
    """The application. Public pages are those of a server: probes and metrics."""
    pages = _Pages(servers, metrics)
    probes = [Route(path, guarded(pages.health), methods=["GET", "HEAD", "POST"]) for path in PROBES]
    middleware = [Middleware(RequestIds, always=True)]
    if options.access_log:
        middleware.append(Middleware(AccessLog))
    if options.allowed_origins:
        middleware.append(
            Middleware(
                CORSMiddleware,
                allow_origins=options.allowed_origins,
                allow_methods=options.allowed_methods,
                allow_headers=options.allowed_headers,
                allow_credentials=options.allow_credentials,
                expose_headers=[HEADER, "Retry-After"],
            )
        )
    middleware += [
        Middleware(ApiKeys, access=access, public_paths=frozenset((*PROBES, "/metrics"))),
        Middleware(BodyLimit, limit=max_body_size, uploads={"/v1/files": (options.max_file_size, "--max-file-size")}),
    ]
    return Starlette(
        routes=[
            *probes,
            Route("/metrics", guarded(pages.metrics)),
            Route("/fleet", guarded(pages.fleet)),
            Route("/fleet/metrics", guarded(pages.fleet_metrics)),
            Mount("", app=proxy),
        ],
        middleware=middleware,
    )


class _Pages:
    """What the router says of itself."""

    def __init__(self, servers: Servers, metrics: RouterMetrics) -> None:
        self._servers, self._metrics = servers, metrics

    async def health(self, request: Request) -> Response:
        """Whether a server answers."""
        del request
        if not self._servers.of("decode"):
            problems = [f"{each.name}: {each.problem}" for each in self._servers.all if not each.is_up]
            raise EngineError(f"no server answers ({'; '.join(problems)})")
        return Response(b"{}", media_type="application/json")

    async def metrics(self, request: Request) -> Response:
        """The router's metrics."""
        del request
        return Response(self._metrics.page(self._servers), media_type=_METRICS)

    async def fleet(self, request: Request) -> Response:
        """The servers behind the router."""
        del request
        states = []
        for server in self._servers.all:
            blocks = [self._servers.prefixes.num_blocks(engine) for engine in server.engines]
            known = [each for each in blocks if each is not None]
            states.append(
                ServerState(
                    name=server.name,
                    role=server.role,
                    url=server.url,
                    up=server.is_up,
                    problem=server.problem,
                    in_flight=server.in_flight,
                    reads_events=len(known) == len(blocks),
                    cached_blocks=sum(known) if known else None,
                )
            )
        return Response(msgspec.json.encode({"servers": states}), media_type="application/json")

    async def fleet_metrics(self, request: Request) -> Response:
        """The metrics of all servers, with the label `server`."""
        del request
        return Response(await fleet_page(self._servers.all), media_type=_METRICS)
