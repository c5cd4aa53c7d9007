"""`jaxllm serve --api-server-count N`: the engines, N processes that answer HTTP, and this one, which holds them.

It reads and writes no text: it has the listening socket, which all share, and the engine, which it tells to serve
each of them. A signal that asks to end goes to all. What ends unasked, a process or the engine, is started again, for
as long as the budget lasts; the others go on.
"""

import asyncio
import logging
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from jaxllm.config import EngineConfig
from jaxllm.config.progress import Progress
from jaxllm.errors import EngineError
from jaxllm.serving.ipc.client.connection import Launch
from jaxllm.serving.ipc.client.supervisor import RestartBudget
from jaxllm.serving.options.origins import Origins
from jaxllm.serving.options.server import ServerOptions
from jaxllm.serving.server.listener import Listener
from jaxllm.serving.server.signals import Signals, before, cancel
from jaxllm.serving.server.takeover import Handover
from jaxllm.serving.server.watchdog import LOOK_SECONDS, EngineMemory
from jaxllm.serving.server.workers.messages import (
    Drain,
    EngineHangs,
    FromWorker,
    Listening,
    Overloaded,
    Pong,
    RequestEngine,
    Resized,
    Scale,
    StartFailed,
    WorkerConfig,
)
from jaxllm.serving.server.workers.scaling import WorkerScaling
from jaxllm.serving.server.workers.shared_engines import SharedEngines
from jaxllm.serving.server.workers.watch import WorkerWatch
from jaxllm.serving.server.workers.worker import Worker
from jaxllm.serving.telemetry.log_format import MULTILINE
from jaxllm.serving.telemetry.logs import banner
from jaxllm.serving.telemetry.shared_metrics import SharedMetrics, make_file, open_file
from jaxllm.serving.text.measurements import Measurements

_log = logging.getLogger(__name__)

# What a process gets beyond --shutdown-timeout before it is killed.
_GRACE_SECONDS = 15.0
# What processes get to write their last events when something failed.
_FAILED_SECONDS = 5.0
_COUNT_SECONDS = 1.0
_PUBLISH_SECONDS = 0.2
# The supervisor has no slot: every process is another one.
_NO_SLOT = -1


async def supervise(
    listener: Listener,
    signals: Signals,
    config: EngineConfig,
    options: ServerOptions,
    *,
    progress: Progress,
    launch_of: Callable[[int], Launch],
    origins: Origins,
) -> int:
    """Serve with several processes until a signal comes; the exit code. Raises errors as `serve` does."""
    with open_file() as file, open_file() as adapters:
        shared_metrics = make_file(file, options.api_server_count)
        servers = ApiServers(config, options, launch_of, listener, shared_metrics, adapters.fileno())
        try:
            return await servers.run(signals, progress, origins)
        finally:
            await servers.close()


class ApiServers:
    """The engines and the processes."""

    def __init__(
        self,
        config: EngineConfig,
        options: ServerOptions,
        launch_of: Callable[[int], Launch],
        listener: Listener,
        shared_metrics: int,
        shared_adapters: int,
    ) -> None:
        """Files to which processes write: what they have measured, and which adapters they serve."""
        self._config, self._options, self._listener = config, options, listener
        self._shared_file, self._adapters_file = shared_metrics, shared_adapters
        self._shared_metrics = SharedMetrics(shared_metrics, _NO_SLOT, options.api_server_count)
        self._loop = asyncio.get_running_loop()
        self._engines = SharedEngines(config, options, launch_of, self._fail)
        self._budget = RestartBudget(options.max_restarts, options.restart_window)
        self._workers: dict[int, Worker] = {}
        self._scaling = WorkerScaling(self._engines, self._workers.values)
        self._watch = WorkerWatch(options.step_timeout, self._workers.values)
        self._watching: asyncio.Task[None]
        self._listening: set[Worker] = set()
        self._overloaded = ""
        self._ending = False
        self._all_listen = asyncio.Event()
        self._drain: Callable[[], None] = lambda: None
        self._none_runs = asyncio.Event()
        self._failed: asyncio.Future[None] = self._loop.create_future()

    async def run(self, signals: Signals, progress: Progress, origins: Origins) -> int:
        """Start everything, and end it when asked to."""
        started, self._drain = time.monotonic(), signals.drain
        self._watching = asyncio.create_task(self._watch.run())
        for index in range(self._options.api_server_count):
            self._start_worker(index)
        starting = asyncio.ensure_future(self._start(progress))
        if not await before(signals.first, starting):
            _log.info("received a signal to exit before the model was loaded")
            await cancel(starting)
            return signals.exit_code
        starting.result()
        await self._listener.take_over()
        urls = self._listener.urls(self._options.root_path)
        _log.info("%s", banner(self._engines.info, urls, time.monotonic() - started, origins), extra=MULTILINE)
        reporting = [self._watching, *map(asyncio.create_task, (self._publish(), self._watch_memory()))]
        if not self._options.disable_log_stats:
            reporting += [asyncio.create_task(self._engines.throughput.run()), asyncio.create_task(self._count())]
        async with Handover(self._listener.socket, partial(self._leave, signals)):
            await before(signals.first, self._failed)
        for task in reporting:
            await cancel(task)
        _log.info("shutting down %d API servers", len(self._workers))
        await self._end_workers(signals)
        if self._failed.done() and not signals.second.is_set():
            self._failed.result()
        return signals.exit_code

    def _leave(self, signals: Signals) -> None:
        """Another server has taken over."""
        self._listener.hand_over()
        signals.leave()

    def _start_worker(self, index: int) -> None:
        if self._ending:
            return
        given = WorkerConfig(
            index=index,
            count=self._options.api_server_count,
            listener=self._listener.socket.fileno(),
            shared_metrics=self._shared_file,
            shared_adapters=self._adapters_file,
            config=replace(
                self._config, parallel=replace(self._config.parallel, data_parallel_size=self._engines.size)
            ),
            options=self._options,
        )
        self._workers[index] = Worker(
            given,
            lambda worker, message: self._call(self._take, worker, message),
            lambda worker, meaning: self._call(self._worker_ended, worker, meaning),
        )

    async def _start(self, progress: Progress) -> None:
        """Load the model, and wait until all processes listen, or one fails."""
        loading = asyncio.ensure_future(self._engines.start(progress))
        await asyncio.wait((loading, self._failed), return_when=asyncio.FIRST_COMPLETED)
        if self._failed.done():
            loading.add_done_callback(lambda done: done.cancelled() or done.exception())
            self._failed.result()
        loading.result()
        if not await before(self._all_listen, self._failed):
            return
        self._failed.result()

    async def _publish(self) -> None:
        """Tell the processes again and again what is known of the engine."""
        while True:
            self._shared_metrics.publish_engines(self._engines.metrics.engine_states())
            await asyncio.sleep(_PUBLISH_SECONDS)

    async def _watch_memory(self) -> None:
        """Restart engines that take too much memory, and let the processes take nothing new before that."""
        memory = EngineMemory(self._options.max_process_memory, self._engines.metrics.set_engine_memory)
        while True:
            there = self._engines.all
            problem = memory.look([(number, each.living_pid, each.restart) for number, each in enumerate(there)])
            if problem != self._overloaded:
                self._overloaded = problem
                for worker in self._workers.values():
                    worker.tell(Overloaded(problem))
            await asyncio.sleep(LOOK_SECONDS)

    async def _count(self) -> None:
        """Let the log know of the tokens that the processes have counted."""
        names = ("prompt_tokens", "generation_tokens")
        self._engines.throughput.refused = self._num_rejected
        known = [0, 0]
        while True:
            await asyncio.sleep(_COUNT_SECONDS)
            published = self._shared_metrics.others()
            engines = [engine for each in published for engine in each.measured.engines]
            counts = [sum(engine.counters[name] for engine in engines) for name in names]
            if counts != known:
                prompt, generated = (count - before for count, before in zip(counts, known, strict=True))
                new = Measurements(prompt_tokens=prompt, generation_tokens=generated)
                self._engines.throughput.observe(None, new)
                known = counts

    def _num_rejected(self) -> int:
        return sum(sum(each.measured.http.rejections.values()) for each in self._shared_metrics.others())

    async def _end_workers(self, signals: Signals) -> None:
        """Let all processes finish what runs; a second signal has them killed."""
        self._ending = True
        self._engines.retire()
        self._signal(signal.SIGUSR1 if signals.is_leaving else signal.SIGTERM)
        if not self._workers:
            return
        hurrying = asyncio.ensure_future(self._hurry(signals))
        seconds = _FAILED_SECONDS if self._failed.done() else self._options.shutdown_timeout + _GRACE_SECONDS
        waiting = asyncio.ensure_future(self._none_runs.wait())
        if not await before(signals.second, waiting, seconds):
            self._signal(signal.SIGKILL)
        await cancel(waiting)
        await cancel(hurrying)

    async def _hurry(self, signals: Signals) -> None:
        """While another server takes over, a SIGTERM has what is new on old connections refused."""
        if signals.is_leaving:
            await signals.told.wait()
            self._signal(signal.SIGTERM)

    async def close(self) -> None:
        """End whatever still runs."""
        self._ending = True
        await cancel(self._watching)
        self._signal(signal.SIGKILL)
        await self._scaling.close()
        await self._engines.close()
        self._shared_metrics.close()
        if not self._failed.cancel():
            # Whatever failed meanwhile is not why it ends.
            self._failed.exception()

    def _signal(self, number: int) -> None:
        for worker in self._workers.values():
            worker.signal(number)

    def _call(self, function: Any, *arguments: Any) -> None:
        """From a thread: call on the event loop."""
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    def _take(self, worker: Worker, message: FromWorker) -> None:
        match message:
            case RequestEngine(folder, engine):
                self._engines.attach(worker, folder, engine)
            case EngineHangs(folder, reason):
                self._engines.end_hanging(worker, folder, reason)
            case Scale() | Resized():
                self._scaling.take(worker, message)
            case Drain():
                self._drain()
            case Pong():
                self._watch.take_pong(worker)
            case Listening():
                self._listening.add(worker)
                self._watch.take_listening(worker)
                worker.tell(Overloaded(self._overloaded))
                if self._all_listen.is_set():
                    self._engines.metrics.count_api_server_restart()
                    _log.info("API server %d is back", worker.index)
                elif len(self._listening) == self._options.api_server_count:
                    self._all_listen.set()
            case StartFailed() if self._all_listen.is_set():
                _log.error("API server %d: %s", worker.index, message.message)
            case StartFailed():
                self._fail(message.error())

    def _worker_ended(self, worker: Worker, meaning: str) -> None:
        self._engines.detach(worker)
        self._scaling.forget(worker)
        self._listening.discard(worker)
        del self._workers[worker.index]
        if not self._workers:
            self._none_runs.set()
        if self._ending:
            return
        error = EngineError(f"an API server process ended unexpectedly ({meaning})")
        # One that cannot start would not the next time either.
        delay = self._budget.take() if self._all_listen.is_set() else None
        if delay is None:
            self._fail(EngineError(f"{error}{self._budget if self._all_listen.is_set() else ''}"))
            return
        _log.error("%s; restarting it%s", error, f" in {delay:g} s" if delay else "")
        self._shared_metrics.clear_load(worker.index)
        self._loop.call_later(delay, self._start_worker, worker.index)

    def _fail(self, error: Exception) -> None:
        if not self._failed.done():
            self._failed.set_exception(error)
