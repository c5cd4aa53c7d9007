"""The synchronous client: engines in processes of their own, driven as if there were one in this process."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from jaxllm.config import EngineConfig
from jaxllm.config.engine_info import EngineInfo
from jaxllm.config.progress import Progress, silent
from jaxllm.engine.stats import StepStats, merge_stats
from jaxllm.engine.validation import RequestLimits
from jaxllm.errors import ConfigError, EngineError, fresh
from jaxllm.pooling.limits import PoolingLimits
from jaxllm.pooling.request import PoolingRequest
from jaxllm.requests.outputs import EngineOutput
from jaxllm.requests.request import as_request_ids
from jaxllm.serving.ipc.client.connection import EngineConnection
from jaxllm.serving.ipc.client.control import BackgroundControl, called
from jaxllm.serving.ipc.client.launch import launch_with_devices
from jaxllm.serving.ipc.client.placement import as_first, of_rank
from jaxllm.serving.ipc.client.process import EngineProcess
from jaxllm.serving.ipc.client.router import Router, prompt_of
from jaxllm.serving.ipc.messages import (
    Abort,
    Add,
    Call,
    Called,
    CallResult,
    EngineMethod,
    Finish,
    FromEngine,
    Outputs,
    Pool,
    UpdateWeights,
)

_HALTED_SECONDS = 0.02


class BackgroundEngine:
    """What `jaxllm.engine.engine.Engine` does, in other processes: the caller's work and the steps go on side by side.

    There are `data_parallel_size` engines, among which requests are shared out. Not thread-safe, like the engine. When
    a process ends, every call raises `EngineError`.
    """

    def __init__(self, config: EngineConfig, progress: Progress) -> None:
        if config.parallel.data_parallel_size_local is not None:
            raise ConfigError("data_parallel_size_local: only `jaxllm serve` supports engines on other hosts; omit it")
        self._events: SimpleQueue[tuple[int, FromEngine | EngineError]] = SimpleQueue()
        self._router = Router(config.parallel.data_parallel_routing)
        self._numbers = range(config.parallel.data_parallel_size)
        self._connections = [self._connect(number, config) for number in self._numbers]
        try:
            info = self._start(config, progress)
        except BaseException:
            self._close()
            raise
        self._limits = RequestLimits.of(info) if info.pooling is None else PoolingLimits.of(info)
        self._unfinished: dict[str, int] = {}
        self._waiting: list[EngineOutput] = []
        self._calls = 0
        self._stats = [StepStats() for _ in self._numbers]
        self._error: EngineError | None = None

    def _connect(self, number: int, config: EngineConfig) -> EngineConnection:
        def hear(message: FromEngine | EngineError) -> None:
            self._events.put((number, message))

        return EngineConnection(hear, hear, launch_with_devices(EngineProcess, config, number))

    def _start(self, config: EngineConfig, progress: Progress) -> EngineInfo:
        """The first process compiles; the others, which come after it at once, find everything on disk."""
        first, *others = self._connections
        info = first.start(of_rank(config, 0), progress=progress, log_level="warning")
        config = as_first(config, info)
        with ThreadPoolExecutor(max(len(others), 1), "engine-start") as pool:
            starting = [
                pool.submit(each.start, of_rank(config, number), log_level="warning")
                for number, each in enumerate(others, 1)
            ]
            for done, each in enumerate(starting, 2):
                each.result()
                progress("Starting engines", done, len(self._connections))
        return info

    @classmethod
    def from_config(cls, config: EngineConfig, progress: Progress = silent) -> "BackgroundEngine":
        """Start the processes and load the model. Raises `ConfigError`, `CapacityError` and `EngineError`."""
        return cls(config, progress)

    @property
    def info(self) -> EngineInfo:
        """The model and its limits: those of the first engine."""
        return self._connections[0].info

    def add_request(self, request: Any) -> None:
        """Queue a `Request`, or of a pooling model a `PoolingRequest`.

        Raises `RequestError`, and queues nothing, when it cannot be served.
        """
        self._check_alive()
        self._limits.check(request)
        number = self._router.choose(self._numbers, prompt_of(request))
        message = Pool.of(request) if isinstance(request, PoolingRequest) else Add.of([request])
        self._connections[number].send(message)
        self._unfinished[request.request_id] = number

    def abort_request(self, request_ids: str | Iterable[str]) -> None:
        """End requests without further outputs. Unknown or finished ones are ignored."""
        known: dict[int, list[str]] = {}
        for request_id in as_request_ids(request_ids):
            if request_id in self._unfinished:
                known.setdefault(self._unfinished.pop(request_id), []).append(request_id)
        if self._error is None:
            for number, names in known.items():
                self._connections[number].send(Abort(names))

    def finish_request(self, request_id: str, stop_reason: str) -> None:
        """End a request whose text holds a stop string."""
        number = self._unfinished.pop(request_id, None)
        if number is not None:
            self._connections[number].send(Finish([(request_id, stop_reason)]))

    def has_unfinished_requests(self) -> bool:
        """Whether `step` has anything to wait for."""
        return bool(self._unfinished)

    def step(self) -> list[EngineOutput]:
        """Wait for outputs, and return all there are; a moment only, while an engine computes nothing.

        Raises `EngineError` when an engine ends.
        """
        outputs, self._waiting = self._waiting, []
        while not outputs and self._unfinished:
            # Who waits for outputs of engines that sleep would keep the caller from waking them up.
            halted = any(each.halted for each in self._stats)
            try:
                outputs += self._take(*self._events.get(timeout=_HALTED_SECONDS if halted else None))
            except Empty:
                break
            while True:
                try:
                    outputs += self._take(*self._events.get_nowait())
                except Empty:
                    break
        for output in outputs:
            if output.finished:
                self._unfinished.pop(output.request_id, None)
        return outputs

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False, and no change, while requests run."""
        results = self._call("reset_prefix_cache")
        for number in self._numbers:
            self._router.forget_prefixes(number)
        return all(results)

    def start_profile(self) -> str:
        """See `Profiler.start`."""
        return str(self._call("start_profile")[0])

    def stop_profile(self) -> str:
        """See `Profiler.stop`."""
        return str(self._call("stop_profile")[0])

    @property
    def control(self) -> BackgroundControl:
        """Sleep, pauses and weight updates of all engines."""
        return BackgroundControl(self._ask, partial(self._ask, only_first=True))

    def state(self) -> StepStats:
        """The engines' last states."""
        return merge_stats(self._stats) if self._stats else StepStats()

    def _call(self, method: EngineMethod) -> list[CallResult]:
        return self._ask(called(method))

    def _ask(self, make: Callable[[int], Call | UpdateWeights], *, only_first: bool = False) -> list[CallResult]:
        """The answer of each engine to a message, or of the first one. Raises the `RequestError` that one raises."""
        self._check_alive()
        self._calls += 1
        question = make(self._calls)
        asked = self._connections[:1] if only_first else self._connections
        for connection in asked:
            connection.send(question)
        called: dict[int, Called] = {}
        while len(called) < len(asked):
            number, message = self._events.get()
            if isinstance(message, Called):
                # Whoever asked before may have been interrupted.
                if message.number == self._calls:
                    called[number] = message
            else:
                self._waiting += self._take(number, message)
        return [each.outcome() for _, each in sorted(called.items())]

    def close(self) -> None:
        """End the processes. The engine cannot be used afterwards."""
        self._error = self._error or EngineError("this engine is closed")
        self._close()

    def _close(self) -> None:
        for connection in self._connections:
            connection.close()

    def _take(self, number: int, message: FromEngine | EngineError) -> list[EngineOutput]:
        if isinstance(message, EngineError):
            self._error = message
            raise message
        if not isinstance(message, Outputs):
            return []
        if message.stats is not None:
            self._router.observe(number, message.stats)
            self._stats[number] = message.stats
        return message.outputs

    def _check_alive(self) -> None:
        if self._error is not None:
            raise fresh(self._error)
