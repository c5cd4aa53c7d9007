"""The life of a router: bind, find the servers, answer, and end well when asked to."""

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from jaxllm.serving.fleet.app import create_router
from jaxllm.serving.fleet.metrics import RouterMetrics
from jaxllm.serving.fleet.proxy import Proxy, ProxyLimits
from jaxllm.serving.fleet.servers import FleetServer, Servers
from jaxllm.serving.http.connection.connections import Connections
from jaxllm.serving.http.connection.server import HttpServer, uvicorn_config
from jaxllm.serving.http.limits import HttpLimits
from jaxllm.serving.options.fleet import RouteOptions
from jaxllm.serving.options.server import ServerOptions
from jaxllm.serving.server.event_loop import run_on_fast_loop
from jaxllm.serving.server.listener import Listener
from jaxllm.serving.server.signals import Signals, before, cancel
from jaxllm.serving.telemetry.logs import configure_logging
from jaxllm.serving.tenancy.access import Access

logger = logging.getLogger(__name__)

MOST_BODY_BYTES = 64 << 20
"""Unless the operator says otherwise: the servers have limits of their own, which follow from the model."""
_CLOSING_SECONDS = 5.0


def run_router(route: RouteOptions, options: ServerOptions) -> int:
    """Route requests until a signal comes; the exit code. Raises `ConfigError`."""
    configure_logging(options.log_level, json_lines=options.log_format == "json")
    return run_on_fast_loop(_route(route, options))


async def _route(route: RouteOptions, options: ServerOptions) -> int:
    found = [FleetServer(number, "decode", url) for number, url in enumerate(route.decode)]
    found += [FleetServer(len(found) + number, "prefill", url) for number, url in enumerate(route.prefill)]
    with Listener(options) as listener, Signals() as signals:
        async with routing(found, options, listener, signals):
            await signals.first.wait()
        return signals.exit_code


@asynccontextmanager
async def routing(
    servers: Sequence[FleetServer], options: ServerOptions, listener: Listener, signals: Signals
) -> AsyncIterator[Servers]:
    """Requests are answered at `listener`. At the end nothing new is taken, and what runs may finish."""
    access = Access.of(options)
    metrics = RouterMetrics(options.metrics_prefix)
    key = options.api_key[0] if options.api_key else None
    body = MOST_BODY_BYTES if options.max_body_size is None else options.max_body_size
    async with Servers(servers, options.health_interval, key) as known:
        limits = ProxyLimits(
            min_transfer_tokens=options.min_transfer_tokens,
            prefill_timeout=options.prefill_timeout,
            max_body_size=body,
            max_in_flight=options.max_num_queued_reqs,
        )
        proxy = Proxy(known, metrics, limits)
        app = create_router(known, proxy, metrics, options, access, body)
        connections = Connections(HttpLimits.of(options))
        http = HttpServer(uvicorn_config(app, options, listener.ssl_context), connections)
        serving = asyncio.create_task(http.serve(sockets=[listener.socket]))
        watching = asyncio.create_task(connections.watch())
        try:
            await http.wait_until_it_listens(serving)
            logger.info("routing to %s; OpenAI API at %s", _shown(servers), listener.urls(options.root_path)[0])
            yield known
            await _end(proxy, http, serving, signals, options.shutdown_timeout)
        finally:
            await cancel(serving)
            await cancel(watching)


async def _end(
    proxy: Proxy, http: HttpServer, serving: "asyncio.Task[None]", signals: Signals, seconds: float
) -> None:  # fmt: skip
    """Take nothing new, let what runs finish for so long, and cut the rest."""
    proxy.accepting = False
    if proxy.in_flight:
        logger.info("shutting down: %d requests have %g s to finish", proxy.in_flight, seconds)
    waiting = asyncio.ensure_future(proxy.idle.wait())
    await before(signals.second, waiting, seconds)
    await cancel(waiting)
    http.should_exit = True
    silent = asyncio.create_task(http.cut_silent(after=0.0))
    if not await before(signals.second, serving, _CLOSING_SECONDS if not proxy.in_flight else 0.0):
        http.cut_connections()
        await asyncio.wait((serving,), timeout=1.0)
    await cancel(silent)


def _shown(servers: Sequence[FleetServer]) -> str:
    counts = [(role, sum(each.role == role for each in servers)) for role in ("prefill", "decode")]
    return " and ".join(f"{count} {role} server{'s' * (count > 1)}" for role, count in counts if count)
