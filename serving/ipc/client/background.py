"""The synchronous client: an engine in a process of its own, driven as if it were in this one."""

from collections.abc import Iterable
from queue import Empty, SimpleQueue
from typing import Any

from jaxllm.config import EngineConfig
from jaxllm.engine.validation import RequestLimits
from jaxllm.errors import EngineError
from jaxllm.info import EngineInfo
from jaxllm.outputs import EngineOutput
from jaxllm.pooling.limits import PoolingLimits
from jaxllm.pooling.request import PoolingRequest
from jaxllm.progress import Progress, silent
from jaxllm.request import as_request_ids
from jaxllm.serving.ipc.client.connection import EngineConnection
from jaxllm.serving.ipc.messages import (
    Abort,
    Add,
    Call,
    Called,
    EngineMethod,
    Finish,
    FromEngine,
    Outputs,
    Pool,
)


class BackgroundEngine:
    """What `jaxllm.engine.engine.Engine` does, in another process: the caller's work and the steps go on side by side.

    Not thread-safe, like the engine. When the process ends, every call raises `EngineError`.
    """

    def __init__(self, config: EngineConfig, progress: Progress) -> None:
        self._events: SimpleQueue[FromEngine | EngineError] = SimpleQueue()
        self._connection = EngineConnection(self._events.put, self._events.put)
        info = self._connection.start(config, progress=progress, log_level="warning")
        self._limits = RequestLimits.of(info) if info.pooling is None else PoolingLimits.of(info)
        self._unfinished: set[str] = set()
        self._waiting: list[EngineOutput] = []
        self._calls = 0
        self._error: EngineError | None = None

    @classmethod
    def from_config(cls, config: EngineConfig, progress: Progress = silent) -> "BackgroundEngine":
        """Start the process and load the model. Raises `ConfigError`, `CapacityError` and `EngineError`."""
        return cls(config, progress)

    @property
    def info(self) -> EngineInfo:
        """The model and its limits."""
        return self._connection.info

    def add_request(self, request: Any) -> None:
        """Queue a `Request`, or of a pooling model a `PoolingRequest`.

        Raises `RequestError`, and queues nothing, when it cannot be served.
        """
        self._check_alive()
        self._limits.check(request)
        self._connection.send(Pool.of(request) if isinstance(request, PoolingRequest) else Add.of([request]))
        self._unfinished.add(request.request_id)

    def abort_request(self, request_ids: str | Iterable[str]) -> None:
        """End requests without further outputs. Unknown or finished ones are ignored."""
        known = [request_id for request_id in as_request_ids(request_ids) if request_id in self._unfinished]
        self._unfinished.difference_update(known)
        if known and self._error is None:
            self._connection.send(Abort(known))

    def finish_request(self, request_id: str, stop_reason: str) -> None:
        """End a request whose text holds a stop string."""
        self._unfinished.discard(request_id)
        self._connection.send(Finish([(request_id, stop_reason)]))

    def has_unfinished_requests(self) -> bool:
        """Whether `step` has anything to wait for."""
        return bool(self._unfinished)

    def step(self) -> list[EngineOutput]:
        """Wait for outputs, and return all there are. Raises `EngineError` when the engine ends."""
        outputs, self._waiting = self._waiting, []
        while not outputs and self._unfinished:
            outputs += self._take(self._events.get())
            while True:
                try:
                    outputs += self._take(self._events.get_nowait())
                except Empty:
                    break
        self._unfinished.difference_update(output.request_id for output in outputs if output.finished)
        return outputs

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes; False, and no change, while requests run."""
        return bool(self._call("reset_prefix_cache"))

    def start_profile(self) -> str:
        """See `Profiler.start`."""
        return str(self._call("start_profile"))

    def stop_profile(self) -> str:
        """See `Profiler.stop`."""
        return str(self._call("stop_profile"))

    def _call(self, method: EngineMethod) -> bool | str | None:
        """What a method of the engine returns. Raises the `RequestError` that it raises."""
        self._check_alive()
        self._calls += 1
        self._connection.send(Call(self._calls, method))
        while True:
            message = self._events.get()
            if isinstance(message, Called):
                return message.outcome()
            self._waiting += self._take(message)

    def close(self) -> None:
        """End the process. The engine cannot be used afterwards."""
        self._error = self._error or EngineError("this engine is closed")
        self._connection.close()

    def _take(self, message: FromEngine | EngineError) -> list[EngineOutput]:
        if isinstance(message, EngineError):
            self._error = message
            raise message
        return message.outputs if isinstance(message, Outputs) else []

    def _check_alive(self) -> None:
        if self._error is not None:
            raise self._error
