"""The life of `jaxllm serve`: bind, load, answer, and end well when asked to."""

import asyncio
import logging
import sys
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import uvicorn

from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError, EngineError
from jaxllm.garbage import settle
from jaxllm.progress import Progress, silent
from jaxllm.serving.http.connection.connections import Connections
from jaxllm.serving.http.connection.server import HttpServer
from jaxllm.serving.http.limits import HttpLimits
from jaxllm.serving.http.middleware.custom import load_middleware, load_router
from jaxllm.serving.http.state import ServerState
from jaxllm.serving.ipc.client.connection import Launch
from jaxllm.serving.ipc.client.process import EngineProcess
from jaxllm.serving.llm.async_llm import AsyncLLM
from jaxllm.serving.openai.files.store import lock_folder
from jaxllm.serving.openai.stores import Stores, stores_of
from jaxllm.serving.options.server import ServerOptions
from jaxllm.serving.reply.registry import ReplyFormats
from jaxllm.serving.server.app import create_app
from jaxllm.serving.server.listener import Listener
from jaxllm.serving.server.signals import Signals, before, cancel
from jaxllm.serving.telemetry.logs import ThroughputLog, banner, configure_logging
from jaxllm.serving.telemetry.metrics import Metrics
from jaxllm.serving.telemetry.shared_metrics import Published, SharedMetrics
from jaxllm.serving.tenancy.access import Access

_log = logging.getLogger(__name__)

# What connections get to send their last event, and the engine to end, once nothing more is generated.
_CLOSING_SECONDS = 5.0
# What handlers get to notice that their clients are gone.
_CUT_SECONDS = 1.0
_CERTIFICATE_INTERVAL = 60.0
_KEYS_INTERVAL = 1.0
_POST_INTERVAL = 0.2


@dataclass(frozen=True, kw_only=True)
class Place:
    """Of a server among others before one engine, for which somebody else speaks and loads.

    `launch` finds the engine, `shared_metrics` has what the others have measured, `on_listening` is called when it
    answers.
    """

    launch: Launch
    shared_metrics: SharedMetrics
    on_listening: Callable[[], None]


def run_server(
    config: EngineConfig, options: ServerOptions, progress: Progress = silent, launch: Launch = EngineProcess
) -> int:
    """`serve` on an event loop of its own, the fastest there is."""
    return on_fast_loop(serve(config, options, progress=progress, launch=launch))


def on_fast_loop(work: Coroutine[Any, Any, int]) -> int:
    """Run this on an event loop of its own, the fastest there is."""
    loop_factory = None if sys.platform == "win32" else _uvloop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(work)


def _uvloop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()


async def serve(
    config: EngineConfig, options: ServerOptions, *, progress: Progress = silent, launch: Launch = EngineProcess
) -> int:
    """Serve until SIGTERM or Ctrl-C; the result is the exit code.

    0 when ended by one signal, 128 + its number when a second one cut that short. Raises `ConfigError`,
    `CapacityError` or `EngineError` when it cannot start, and `EngineError` when the engine ends and may not be
    restarted, or ends while it shuts down. The address is checked before the model is loaded.
    """
    configure_logging(options.log_level, json_lines=options.log_format == "json")
    if not config.structured.structured_outputs_canary:
        raise ConfigError(
            "structured_outputs_canary=False: a server cannot do without, as a single grammar could end it; leave it on"
        )
    for path in options.middleware:
        # The application loads it again; here it fails before the model is loaded.
        load_middleware(path)
    for path in options.include_router:
        load_router(path)
    # Likewise: a wrong file of keys, and a folder that cannot be used.
    Access.of(options)
    if options.files_dir is not None:
        lock_folder(Path(options.files_dir)).close()
    ReplyFormats.choose(options.tool_call_parser, options.reasoning_parser, "")
    with Listener(options) as listener:
        if options.api_server_count == 1:
            return await serve_at(listener, config, options, progress=progress, launch=launch)
        from jaxllm.serving.server.workers.supervisor import supervise

        with Signals() as signals:
            return await supervise(listener, signals, config, options, progress=progress, launch=launch)


async def serve_at(
    listener: Listener,
    config: EngineConfig,
    options: ServerOptions,
    *,
    progress: Progress = silent,
    launch: Launch = EngineProcess,
    place: Place | None = None,
) -> int:
    """`serve` with this process alone answering, at `listener`; `place`: as one of several."""
    json_lines = options.log_format == "json"
    configure_logging(options.log_level, json_lines=json_lines)
    started = time.monotonic()
    with Signals() as signals:
        loading = asyncio.ensure_future(
            AsyncLLM.start(
                config,
                max_queued_requests=options.max_queued_requests,
                step_timeout=options.step_timeout,
                progress=progress,
                chat_template=options.chat_template,
                log_level=options.log_level,
                json_logs=json_lines,
                launch=launch if place is None else place.launch,
                # Among others, this process does not start the engine: it is told of the next one.
                max_restarts=options.max_restarts if place is None else None,
                restart_window=options.restart_window,
            )
        )
        if not await before(signals.first, loading):
            _log.info("told to end before the model was loaded")
            await cancel(loading)
            return signals.exit_code
        llm = loading.result()
        try:
            return await _answer(llm, options, listener, signals, place, started)
        finally:
            await llm.shutdown()


async def _answer(
    llm: AsyncLLM,
    options: ServerOptions,
    listener: Listener,
    signals: Signals,
    place: Place | None,
    started: float,
) -> int:
    """Answer requests until a signal comes, then end."""
    names = options.served_model_name or (llm.info.model,)
    metrics = Metrics(llm.info, names[0], options.metrics_prefix)
    llm.observers.append(metrics)
    llm.on_restart.append(metrics.count_engine_restart)
    state = ServerState(
        llm=llm, options=options, metrics=metrics, model_names=names, accepting=True, created=int(time.time())
    )
    connections = Connections(HttpLimits.of(options))
    app = create_app(state)
    stores = stores_of(app)
    http = HttpServer(_uvicorn_config(app, options, listener), connections)
    background = [
        asyncio.create_task(_renew(listener)),
        asyncio.create_task(connections.watch()),
        asyncio.create_task(_follow_keys(state)),
    ]
    if place is None:
        if not options.disable_log_stats:
            throughput = ThroughputLog()
            throughput.refused = metrics.http.num_rejected
            llm.observers.append(throughput)
            background.append(asyncio.create_task(throughput.run()))
    else:
        state.shared_metrics = place.shared_metrics
        before = place.shared_metrics.own()
        if before is not None:
            # Of the process whose place this one takes: counters do not go back.
            metrics.add(before.measured)
        background.append(asyncio.create_task(_publish(state, place.shared_metrics)))
    serving = asyncio.create_task(http.serve(sockets=[listener.socket]))
    settle()
    try:
        await http.wait_until_it_listens(serving)
        stores.resume(app)
        _announce(state, listener, place, started)
        await _until_told_or_over(signals, serving, llm)
        deadline = time.monotonic() + (0.0 if llm.loss.done() else options.shutdown_timeout)
        await _drain(state, stores, signals)
        # Clients that read more slowly than the engine writes have the same time as the engine.
        await _close(http, serving, signals, max(_CLOSING_SECONDS, deadline - time.monotonic()))
    finally:
        for task in (serving, *background):
            await cancel(task)
        await stores.close()
    if llm.loss.done() and not signals.second.is_set():
        raise llm.loss.result()
    return signals.exit_code


def _announce(state: ServerState, listener: Listener, place: Place | None, started: float) -> None:
    """Say that connections are taken."""
    if place is not None:
        place.on_listening()
        return
    urls = listener.urls(state.options.root_path)
    _log.info("%s", banner(state.llm.info, urls, time.monotonic() - started))
    if listener.is_open and not state.access.needs_key:
        _log.warning(
            "anybody who reaches this machine may use this server: set --api-key, or listen with --host "
            "127.0.0.1 for this machine alone"
        )


async def _until_told_or_over(signals: Signals, serving: "asyncio.Task[None]", llm: AsyncLLM) -> None:
    """Wait for a signal, or until there is no engine any more. Raises `EngineError` when nobody answers any more."""
    over = asyncio.ensure_future(asyncio.wait((serving, llm.loss), return_when=asyncio.FIRST_COMPLETED))
    await before(signals.first, over)
    await cancel(over)
    if serving.done():
        await serving
        raise EngineError("the HTTP server ended by itself")


async def _publish(state: ServerState, shared_metrics: SharedMetrics) -> None:
    """Tell the other processes again and again what this one has measured."""
    while True:
        shared_metrics.publish(Published(state.llm.num_unfinished, state.metrics.measured()))
        await asyncio.sleep(_POST_INTERVAL)


async def _drain(state: ServerState, stores: Stores, signals: Signals) -> None:
    """Refuse what is new, let what runs finish for a while, and end the rest with an error."""
    llm, timeout = state.llm, state.options.shutdown_timeout
    state.accepting = False
    await stores.stop_batches()
    running = llm.num_unfinished
    _log.info("shutting down%s", f": {running} requests have {timeout:g} s to finish" if running else "")
    draining = asyncio.ensure_future(llm.drain(timeout))
    await before(signals.second, draining)
    await cancel(draining)
    if llm.num_unfinished:
        _log.warning("%d requests did not finish and get an error", llm.num_unfinished)
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


async def _follow_keys(state: ServerState) -> None:
    """Follow the file of keys while the server runs."""
    while state.options.api_key_file is not None:
        await asyncio.sleep(_KEYS_INTERVAL)
        try:
            if await asyncio.to_thread(state.access.reload):
                _log.info("the keys were read again")
        except ConfigError as error:
            _log.warning("the old keys stay: %s", error)


async def _renew(listener: Listener) -> None:
    """Follow certificates that are renewed while the server runs."""
    while listener.ssl_context is not None:
        await asyncio.sleep(_CERTIFICATE_INTERVAL)
        try:
            if listener.reload_certificate():
                _log.info("the certificate was read again")
        except ConfigError as error:
            _log.warning("the old certificate stays: %s", error)


def _uvicorn_config(app: Any, options: ServerOptions, listener: Listener) -> uvicorn.Config:
    context = listener.ssl_context
    return uvicorn.Config(
        app if options.root_path is None else _under(app, options.root_path),
        ws="none",
        loop="none",
        interface="asgi3",
        # Nothing here has one, and uvicorn logs a traceback for one that is cut short.
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=False,  # AccessLog says more
        server_header=False,
        proxy_headers=bool(options.trusted_proxies),
        forwarded_allow_ips=list(options.trusted_proxies),
        timeout_keep_alive=options.timeout_keep_alive,
        ssl_context_factory=None if context is None else lambda _config, _default: context,
    )


def _under(app: Any, root_path: str) -> Any:
    """`app` behind a proxy that shows it under `root_path`, whether or not the proxy takes that off the paths."""

    async def shown(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "root_path": root_path.rstrip("/")}, receive, send)

    return shown
