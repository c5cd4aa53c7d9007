"""`jaxllm serve --api-server-count N`: one engine, N processes that answer HTTP, and this one, which holds them.

It reads and writes no text: it has the listening socket, which all share, and the engine, which it tells to serve
each of them. A signal that asks to end goes to all. A process that ends unasked takes everything with it: whoever
started the server starts it again, from a state that is known.
"""

import asyncio
import logging
import signal
import tempfile
import time
from typing import Any

from jaxllm.config import EngineConfig
from jaxllm.errors import EngineError
from jaxllm.progress import Progress
from jaxllm.serving.api_servers.board import Board, make_file
from jaxllm.serving.api_servers.order import Attach, EngineEnded, GaveUp, Line, Listening, Order
from jaxllm.serving.api_servers.worker import Worker
from jaxllm.serving.clients.connection import EngineConnection, Launch
from jaxllm.serving.engine_process import messages as engine_messages
from jaxllm.serving.engine_process.messages import FromEngine, Outputs
from jaxllm.serving.listener import Listener
from jaxllm.serving.logs import ThroughputLog, banner
from jaxllm.serving.measurements import Measurements
from jaxllm.serving.options import ServerOptions
from jaxllm.serving.signals import Signals, before, cancel

_log = logging.getLogger(__name__)

# What a process gets beyond --shutdown-timeout before it is killed.
_GRACE_SECONDS = 15.0
_COUNT_SECONDS = 1.0
# Of the board, for whom every process is another one.
_NO_SLOT = -1


async def supervise(
    listener: Listener,
    signals: Signals,
    config: EngineConfig,
    options: ServerOptions,
    *,
    progress: Progress,
    launch: Launch,
) -> int:
    """Serve with several processes until a signal comes; the exit code. Raises errors as `serve` does."""
    with tempfile.TemporaryFile() as board:
        servers = ApiServers(config, options, launch)
        try:
            return await servers.run(listener, signals, progress, make_file(board, options.api_server_count))
        finally:
            await asyncio.to_thread(servers.close)


class ApiServers:
    """The engine and the processes."""

    def __init__(self, config: EngineConfig, options: ServerOptions, launch: Launch) -> None:
        self._config, self._options = config, options
        self._loop = asyncio.get_running_loop()
        self._throughput = ThroughputLog()
        self._engine = EngineConnection(self._hear, self._engine_ended, launch)
        self._ready = False
        self._folders: list[str] = []
        self._workers: list[Worker] = []
        self._running = 0
        self._listening = 0
        self._ending = False
        self._all_listen = asyncio.Event()
        self._none_runs = asyncio.Event()
        self._failed: asyncio.Future[None] = self._loop.create_future()

    async def run(self, listener: Listener, signals: Signals, progress: Progress, board: int) -> int:
        """Start everything, and end it when asked to."""
        started = time.monotonic()
        for index in range(self._options.api_server_count):
            self._start_worker(index, listener.socket.fileno(), board)
        starting = asyncio.ensure_future(self._start(progress))
        if not await before(signals.first, starting):
            _log.info("told to end before the model was loaded")
            await cancel(starting)
            return signals.exit_code
        starting.result()
        urls = listener.urls(self._options.root_path)
        _log.info("%s", banner(self._engine.info, urls, time.monotonic() - started))
        reporting: list[asyncio.Task[None]] = []
        if not self._options.disable_log_stats:
            reporting = [asyncio.create_task(self._throughput.run()), asyncio.create_task(self._count(board))]
        if await before(signals.first, self._failed):
            self._failed.result()
        for task in reporting:
            await cancel(task)
        _log.info("shutting down %d API servers", len(self._workers))
        await self._end_workers(signals)
        return signals.exit_code

    def _start_worker(self, index: int, listener: int, board: int) -> None:
        order = Order(
            index=index,
            count=self._options.api_server_count,
            listener=listener,
            board=board,
            config=self._config,
            options=self._options,
        )
        self._running += 1
        self._workers.append(
            Worker(
                order,
                lambda line: self._call(self._take, line),
                lambda meaning: self._call(self._worker_ended, meaning),
            )
        )

    async def _start(self, progress: Progress) -> None:
        """Load the model, and wait until all processes listen, or one fails."""
        options = self._options
        loading = asyncio.ensure_future(
            asyncio.to_thread(
                self._engine.start,
                self._config,
                progress=progress,
                log_level=options.log_level,
                json_logs=options.log_format == "json",
            )
        )
        await asyncio.wait((loading, self._failed), return_when=asyncio.FIRST_COMPLETED)
        if self._failed.done():
            loading.add_done_callback(lambda done: done.exception())
            self._failed.result()
        loading.result()
        self._ready = True
        for folder in self._folders:
            self._engine.send(engine_messages.Attach(folder))
        if not await before(self._all_listen, self._failed):
            return
        self._failed.result()

    async def _count(self, handle: int) -> None:
        """Let the log know of the tokens that the processes have counted."""
        names = ("prompt_tokens", "generation_tokens")
        board = Board(handle, _NO_SLOT, self._options.api_server_count)
        known = [0, 0]
        while True:
            await asyncio.sleep(_COUNT_SECONDS)
            posted = board.others()
            counts = [sum(each.measured.counters[name] for each in posted) for name in names]
            if counts != known:
                prompt, generated = (count - before for count, before in zip(counts, known, strict=True))
                new = Measurements(prompt_tokens=prompt, generation_tokens=generated)
                self._throughput.observe(None, new)
                known = counts

    async def _end_workers(self, signals: Signals) -> None:
        """Let all processes finish what runs; a second signal has them killed."""
        self._ending = True
        self._signal(signal.SIGTERM)
        waiting = asyncio.ensure_future(self._none_runs.wait())
        if not await before(signals.second, waiting, self._options.shutdown_timeout + _GRACE_SECONDS):
            self._signal(signal.SIGKILL)
        await cancel(waiting)

    def close(self) -> None:
        """End whatever still runs."""
        self._ending = True
        self._signal(signal.SIGKILL)
        self._engine.close()
        if not self._failed.cancel():
            # Whatever failed meanwhile is not why it ends.
            self._failed.exception()

    def _signal(self, number: int) -> None:
        for worker in self._workers:
            worker.signal(number)

    def _call(self, function: Any, *arguments: Any) -> None:
        """From a thread: call on the event loop."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    def _take(self, line: Line) -> None:
        match line:
            case Attach(folder):
                self._folders.append(folder)
                if self._ready:
                    self._engine.send(engine_messages.Attach(folder))
            case Listening():
                self._listening += 1
                if self._listening == len(self._workers):
                    self._all_listen.set()
            case GaveUp():
                self._fail(line.error())

    def _worker_ended(self, meaning: str) -> None:
        self._running -= 1
        if not self._running:
            self._none_runs.set()
        if not self._ending:
            self._fail(EngineError(f"an API server process ended by itself ({meaning}): all end"))

    def _fail(self, error: Exception) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)

    def _engine_ended(self, error: EngineError) -> None:
        """In the listening thread. The processes go on and say so, as one alone does, until told to end."""
        _log.error("%s; requests are refused with status 503", error)
        ended = EngineEnded(self._engine.exit_reason or str(error))
        for worker in self._workers:
            worker.tell(ended)

    def _hear(self, message: FromEngine) -> None:
        """In the listening thread. Whatever is of requests goes to the processes; here comes the state after a step."""
        if isinstance(message, Outputs) and not self._options.disable_log_stats:
            self._call(self._throughput.observe, message.stats, None)
