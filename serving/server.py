"""The life of `jaxllm serve`: bind, load, answer, and end well when asked to."""

import asyncio
import gc
import logging
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Self

import psutil
import uvicorn

from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError, EngineError
from jaxllm.progress import Progress, silent
from jaxllm.serving.app import ServerState, create_app
from jaxllm.serving.async_llm import AsyncLLM
from jaxllm.serving.clients.process import ENGINE_MODULE
from jaxllm.serving.http_limits import limited_protocol
from jaxllm.serving.listener import Listener
from jaxllm.serving.logs import ThroughputLog, banner, configure_logging
from jaxllm.serving.metrics import Metrics
from jaxllm.serving.openai.middleware.custom import load_middleware
from jaxllm.serving.options import ServerOptions

_log = logging.getLogger(__name__)

# What connections get to send their last event, and the engine to end, once nothing more is generated.
_CLOSING_SECONDS = 5.0
# What handlers get to notice that their clients are gone.
_CUT_SECONDS = 1.0
_HEALTH_INTERVAL = 1.0
_CERTIFICATE_INTERVAL = 60.0
_QUIET_PATHS = ("/health", "/ready", "/ping", "/metrics")


def run_server(
    config: EngineConfig, options: ServerOptions, progress: Progress = silent, engine_module: str = ENGINE_MODULE
) -> int:
    """`serve` on an event loop of its own, the fastest there is."""
    loop_factory = None if sys.platform == "win32" else _uvloop
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        return runner.run(serve(config, options, progress=progress, engine_module=engine_module))


def _uvloop() -> asyncio.AbstractEventLoop:
    import uvloop

    return uvloop.new_event_loop()


async def serve(
    config: EngineConfig,
    options: ServerOptions,
    *,
    progress: Progress = silent,
    engine_module: str = ENGINE_MODULE,
) -> int:
    """Serve until SIGTERM or Ctrl-C; the result is the exit code.

    0 when ended by one signal, 128 + its number when a second one cut that short. Raises `ConfigError`,
    `CapacityError` or `EngineError` when it cannot start; the address is checked before the model is loaded.
    """
    json_lines = options.log_format == "json"
    configure_logging(options.log_level, json_lines=json_lines)
    for path in options.middleware:
        # The application loads it again; here it fails before the model is loaded.
        load_middleware(path)
    started = time.monotonic()
    with Listener(options) as listener, _Signals() as signals:
        loading = asyncio.ensure_future(
            AsyncLLM.start(
                config,
                max_queued_requests=options.max_queued_requests,
                step_timeout=options.step_timeout,
                progress=progress,
                chat_template=options.chat_template,
                log_level=options.log_level,
                json_logs=json_lines,
                engine_module=engine_module,
            )
        )
        if not await _before(signals.first, loading):
            _log.info("told to end before the model was loaded")
            await _cancel(loading)
            return signals.exit_code
        llm = loading.result()
        try:
            return await _answer(llm, options, listener, signals, time.monotonic() - started)
        finally:
            await llm.shutdown()


async def _answer(
    llm: AsyncLLM, options: ServerOptions, listener: Listener, signals: "_Signals", load_seconds: float
) -> int:
    """Answer requests until a signal comes, then end."""
    names = options.served_model_name or (llm.info.model,)
    metrics = Metrics(llm.info, names[0], options.metrics_prefix)
    llm.observers.append(metrics)
    state = ServerState(
        llm=llm, options=options, metrics=metrics, model_names=names, accepting=True, created=int(time.time())
    )
    http = _HttpServer(_uvicorn_config(create_app(state), options, listener))
    background = [asyncio.create_task(_watch(llm)), asyncio.create_task(_renew(listener))]
    if not options.disable_log_stats:
        throughput = ThroughputLog()
        llm.observers.append(throughput)
        background.append(asyncio.create_task(throughput.run()))
    serving = asyncio.create_task(http.serve(sockets=[listener.socket]))
    # What lives now lives as long as the server: garbage collections need not look at it again.
    gc.collect()
    gc.freeze()
    try:
        await http.wait_until_it_listens(serving)
        _log.info("%s", banner(llm.info, listener.urls(options.root_path), load_seconds))
        if await _before(signals.first, serving):
            await serving
            raise EngineError("the HTTP server ended by itself")
        deadline = time.monotonic() + options.shutdown_timeout
        await _drain(state, signals)
        # Clients that read more slowly than the engine writes have the same time as the engine.
        await _close(http, serving, signals, max(_CLOSING_SECONDS, deadline - time.monotonic()))
    finally:
        for task in (serving, *background):
            await _cancel(task)
    return signals.exit_code


async def _drain(state: ServerState, signals: "_Signals") -> None:
    """Refuse what is new, let what runs finish for a while, and end the rest with an error."""
    llm, timeout = state.llm, state.options.shutdown_timeout
    state.accepting = False
    running = llm.num_unfinished
    _log.info("shutting down%s", f": {running} requests have {timeout:g} s to finish" if running else "")
    draining = asyncio.ensure_future(llm.drain(timeout))
    await _before(signals.second, draining)
    await _cancel(draining)
    if llm.num_unfinished:
        _log.warning("%d requests did not finish and get an error", llm.num_unfinished)
    llm.fail_all("the server is shutting down")


async def _close(http: "_HttpServer", serving: "asyncio.Task[None]", signals: "_Signals", seconds: float) -> None:
    """Let all responses reach their clients; connections that take longer than `seconds` are cut."""
    http.should_exit = True
    if not await _before(signals.second, serving, seconds):
        http.cut_connections()
        await asyncio.wait((serving,), timeout=_CUT_SECONDS)


async def _watch(llm: AsyncLLM) -> None:
    """Log once why the engine fails. A supervisor that restarts engines belongs here."""
    failed = False
    while True:
        try:
            llm.check_health()
            if failed:
                _log.info("the engine answers again")
            failed = False
        except EngineError as error:
            if not failed:
                _log.error("%s; requests are refused with status 503", error)
            failed = True
        await asyncio.sleep(_HEALTH_INTERVAL)


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
    config = uvicorn.Config(
        app if options.root_path is None else _under(app, options.root_path),
        http=limited_protocol(options.h11_max_incomplete_event_size, options.h11_max_header_count),
        ws="none",
        loop="none",
        interface="asgi3",
        # Nothing here has one, and uvicorn logs a traceback for one that is cut short.
        lifespan="off",
        log_config=None,
        log_level="warning",
        access_log=options.access_log,
        server_header=False,
        timeout_keep_alive=options.timeout_keep_alive,
        ssl_context_factory=None if context is None else lambda _config, _default: context,
    )
    access = logging.getLogger("uvicorn.access")
    access.setLevel(logging.INFO)
    access.addFilter(_worth_logging)
    return config


def _under(app: Any, root_path: str) -> Any:
    """`app` behind a proxy that shows it under `root_path`, whether or not the proxy takes that off the paths."""

    async def shown(scope: Any, receive: Any, send: Any) -> None:
        await app({**scope, "root_path": root_path.rstrip("/")}, receive, send)

    return shown


def _worth_logging(record: logging.LogRecord) -> bool:
    """Whether a line of uvicorn's access log is about more than health or metrics."""
    path = record.args[2] if isinstance(record.args, tuple) and len(record.args) > 2 else ""
    return str(path).partition("?")[0] not in _QUIET_PATHS


class _HttpServer(uvicorn.Server):
    """uvicorn that leaves signals to us: ending begins with the engine's requests, not with connections."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def wait_until_it_listens(self, serving: "asyncio.Future[None]") -> None:
        """Return when connections are taken. `serving` is what `serve` does."""
        while not self.started:
            if serving.done():
                try:
                    await serving
                except OSError as error:
                    raise ConfigError(f"cannot listen: {error.strerror or error}") from None
            await asyncio.sleep(0.01)

    def cut_connections(self) -> None:
        """Close what is still open. Handlers see their clients leave, which is no error; being cancelled would be."""
        connections = list(self.server_state.connections)
        if connections:
            _log.warning("%d connections are cut", len(connections))
        for connection in connections:
            if connection.transport is not None:
                connection.transport.abort()


class _Signals:
    """SIGTERM and SIGINT as events: the first asks to end well, the second to end now. A context manager."""

    def __init__(self) -> None:
        self.first = asyncio.Event()
        self.second = asyncio.Event()
        self.exit_code = 0
        self._loop = asyncio.get_running_loop()

    def __enter__(self) -> Self:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._take, number)
        return self

    def __exit__(self, *_: object) -> None:
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.remove_signal_handler(number)

    def _take(self, number: int) -> None:
        if not self.first.is_set():
            self.first.set()
            return
        self.exit_code = 128 + number
        self.second.set()
        # The engine may be in a long step or compilation: it is not asked.
        for child in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                child.kill()


async def _before(event: asyncio.Event, work: "asyncio.Future[Any]", seconds: float | None = None) -> bool:
    """Wait until `work` is done or `event` is set, but no longer than `seconds`; whether the work is done."""
    waiting = asyncio.create_task(event.wait())
    await asyncio.wait((work, waiting), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    return work.done()


async def _cancel(work: "asyncio.Future[Any]") -> None:
    """End `work` if it is not done, and wait for that; its own errors no longer matter."""
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
