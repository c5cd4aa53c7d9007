"""A server with its engine: take connections, answer, and end well when told to."""

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from jaxllm.engine.garbage import settle
from jaxllm.errors import EngineError
from jaxllm.serving.http.connection.connections import Connections
from jaxllm.serving.http.connection.server import HttpServer, uvicorn_config
from jaxllm.serving.http.limits import HttpLimits
from jaxllm.serving.http.shared_adapters import SharedAdapters
from jaxllm.serving.http.state import ServerState
from jaxllm.serving.llm.async_llm import AsyncLLM
from jaxllm.serving.openai.adapters import load_modules
from jaxllm.serving.openai.responses.create import create_again
from jaxllm.serving.openai.stores import Stores, stores_of
from jaxllm.serving.options.origins import Origins
from jaxllm.serving.options.server import ServerOptions
from jaxllm.serving.server.app import create_app
from jaxllm.serving.server.listener import Listener
from jaxllm.serving.server.maintenance import follow_certificate, follow_keys, publish_metrics
from jaxllm.serving.server.signals import Signals, before, cancel
from jaxllm.serving.server.takeover import Handover
from jaxllm.serving.server.watchdog import watch_lag, watch_memory
from jaxllm.serving.server.workers.context import WorkerContext
from jaxllm.serving.telemetry.log_format import MULTILINE
from jaxllm.serving.telemetry.logs import ThroughputLog, banner
from jaxllm.serving.telemetry.metrics import Metrics
from jaxllm.serving.telemetry.shared_metrics import SharedMetrics

if TYPE_CHECKING:
    from jaxllm.serving.telemetry.otlp import Tracing

_log = logging.getLogger(__name__)

# What connections get to send their last event, and the engine to end, once nothing more is generated.
_CLOSING_SECONDS = 5.0
# What handlers get to notice that their clients are gone.
_CUT_SECONDS = 1.0


async def answer(
    llm: AsyncLLM,
    options: ServerOptions,
    listener: Listener,
    signals: Signals,
    worker: WorkerContext | None,
    started: float,
    origins: Origins,
) -> int:
    """Answer requests until a signal comes, then end."""
    shared = (None, None) if worker is None else (worker.shared_metrics, worker.shared_adapters)
    state = make_state(llm, options, *shared)
    state.drain = signals.drain if worker is None else worker.drain
    await load_modules(state)
    connections = Connections(HttpLimits.of(options))
    app = create_app(state)
    stores = stores_of(app)
    http = HttpServer(uvicorn_config(app, options, listener.ssl_context), connections)
    background = [
        asyncio.create_task(each)
        for each in (
            *(follow_certificate(listener), connections.watch(), follow_keys(state), _report(state, worker)),
            watch_memory(state, None if worker is None else worker.overloaded),
            watch_lag(state.metrics.http.loop_lag.observe),
        )
    ]
    serving = asyncio.create_task(http.serve(sockets=[listener.socket]))
    settle()
    try:
        await http.wait_until_it_listens(serving)
        stores.resume(app, create_again)
        await _announce(state, listener, worker, started, origins)
        await _serve(signals, serving, llm, listener, worker)
        deadline = time.monotonic() + (0.0 if llm.loss.done() else options.shutdown_timeout)
        if signals.is_leaving:
            await _leave(http, signals, options.shutdown_timeout)
        await _drain(state, stores, signals, max(0.0, deadline - time.monotonic()))
        # Clients that read more slowly than the engine writes have the same time as the engine.
        await _close(http, serving, signals, max(_CLOSING_SECONDS, deadline - time.monotonic()))
    finally:
        for task in (serving, *background):
            await cancel(task)
        await stores.close()
        await state.end_tracing()
    if llm.loss.done() and not signals.second.is_set():
        raise llm.loss.result()
    return signals.exit_code


def make_state(
    llm: AsyncLLM,
    options: ServerOptions,
    shared_metrics: SharedMetrics | None = None,
    shared_adapters: SharedAdapters | None = None,
) -> ServerState:
    """State that all routes share, with metrics that follow the engine."""
    names = options.served_model_name or (llm.info.model,)
    metrics = Metrics(
        llm.info, names[0], options.metrics_prefix, llm.engines.members.size, llm.config.parallel.first_rank
    )
    llm.observers.append(metrics)
    llm.on_restart.append(metrics.count_engine_restart)
    llm.engines.state.on_resume.append(metrics.count_resumed)
    llm.engines.state.on_resize.append(metrics.resize)
    llm.engines.state.on_lag.append(metrics.observe_engine_lag)
    before = None if shared_metrics is None else shared_metrics.own()
    if before is not None:
        # Values of the process that this one replaces: counters do not go back.
        metrics.add(before.measured)
    return ServerState(
        llm=llm,
        options=options,
        metrics=metrics,
        model_names=names,
        accepting=True,
        created=int(time.time()),
        shared_metrics=shared_metrics,
        shared_adapters=shared_adapters,
        tracing=_tracing(options, names[0]),
    )


def _tracing(options: ServerOptions, model_name: str) -> "Tracing | None":
    if options.otlp_traces_endpoint is None:
        return None
    # Its libraries are an extra of the package.
    from jaxllm.serving.telemetry.otlp import Tracing

    return Tracing(options.otlp_traces_endpoint, model_name)


async def _report(state: ServerState, worker: WorkerContext | None) -> None:
    """Tell the log, or the other processes, what is measured."""
    if worker is not None:
        await publish_metrics(state, worker.shared_metrics)
    elif not state.options.disable_log_stats:
        throughput = ThroughputLog()
        throughput.refused = state.metrics.http.num_rejected
        state.llm.observers.append(throughput)
        await throughput.run()


async def _announce(
    state: ServerState, listener: Listener, worker: WorkerContext | None, started: float, origins: Origins
) -> None:
    """Say that connections are taken."""
    if worker is not None:
        worker.on_listening()
        return
    await listener.take_over()
    urls = listener.urls(state.options.root_path)
    _log.info("%s", banner(state.llm.info, urls, time.monotonic() - started, origins), extra=MULTILINE)
    if listener.is_open and not state.access.needs_key:
        _log.warning(
            "anyone who can reach this machine can use this server: set --api-key, or accept only local connections "
            "with --host 127.0.0.1"
        )


async def _serve(
    signals: Signals, serving: "asyncio.Task[None]", llm: AsyncLLM, listener: Listener, worker: WorkerContext | None
) -> None:
    """Serve until the end, or until another server takes over. Raises as `_wait_for_end`."""
    if worker is not None:
        # The supervisor has the socket.
        await _wait_for_end(signals, serving, llm)
        return

    def leave() -> None:
        listener.hand_over()
        signals.leave()

    async with Handover(listener.socket, leave):
        await _wait_for_end(signals, serving, llm)


async def _leave(http: HttpServer, signals: Signals, seconds: float) -> None:
    """Another server has the new connections: answer those that there are, for so long."""
    _log.info("another server takes over: leaving with %d connections", len(http.server_state.connections))
    leaving = asyncio.ensure_future(http.leave())
    await before(signals.told, leaving, seconds)
    await cancel(leaving)


async def _wait_for_end(signals: Signals, serving: "asyncio.Task[None]", llm: AsyncLLM) -> None:
    """Wait for a signal, or until there is no engine any more. Raises `EngineError` when nobody answers any more."""
    over = asyncio.ensure_future(asyncio.wait((serving, llm.loss), return_when=asyncio.FIRST_COMPLETED))
    await before(signals.first, over)
    await cancel(over)
    if serving.done():
        await serving
        raise EngineError("the HTTP server ended unexpectedly")


async def _drain(state: ServerState, stores: Stores, signals: Signals, seconds: float) -> None:
    """Refuse what is new, let what runs finish for so long, and end the rest with an error."""
    llm = state.llm
    state.accepting = False
    await stores.stop_batches()
    running = llm.num_unfinished
    _log.info("shutting down%s", f": {running} requests have {seconds:g} s to finish" if running else "")
    draining = asyncio.ensure_future(llm.drain(seconds))
    await before(signals.second, draining)
    await cancel(draining)
    if llm.num_unfinished:
        _log.warning("%d requests did not finish in time and receive an error", llm.num_unfinished)
    llm.templates.close()
    state.close()
    stores.hand_over()
    llm.fail_all("the server is shutting down")


async def _close(http: "HttpServer", serving: "asyncio.Task[None]", signals: Signals, seconds: float) -> None:
    """Let all responses reach their clients; connections that take longer than `seconds` are cut.

    Those that have nothing to send get less: a TLS client that keeps its connection for later may never say goodbye.
    """
    http.should_exit = True
    silent = asyncio.create_task(http.cut_silent(after=min(_CLOSING_SECONDS, seconds)))
    in_time = await before(signals.second, serving, seconds)
    await cancel(silent)
    if not in_time:
        http.cut_connections()
        await asyncio.wait((serving,), timeout=_CUT_SECONDS)
