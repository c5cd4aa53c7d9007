"""`python -m jaxllm.serving.server.workers`: one of several API server processes.

Not for people: `jaxllm.serving.server.workers.supervisor` starts it.
"""

import asyncio
import faulthandler
import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from jaxllm.child import imports_done
from jaxllm.errors import CapacityError, ConfigError, EngineError
from jaxllm.serving.http.shared_adapters import SharedAdapters
from jaxllm.serving.server.event_loop import run_on_fast_loop
from jaxllm.serving.server.listener import Listener
from jaxllm.serving.server.server import serve_at
from jaxllm.serving.server.workers.context import WorkerContext
from jaxllm.serving.server.workers.messages import (
    STACKS_SIGNAL,
    Drain,
    EngineEnded,
    EngineHangs,
    FromWorker,
    Listening,
    Overloaded,
    Ping,
    Pong,
    RequestEngine,
    StartFailed,
    ToWorker,
    WorkerConfig,
    receive,
    send,
)
from jaxllm.serving.server.workers.worker_part import WorkerPart
from jaxllm.serving.telemetry.shared_metrics import SharedMetrics


class SupervisorClient:
    """Talks to the process that has the engine. Thread-safe."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self._engines: dict[str, RemoteEngine] = {}
        self.scaling = WorkerPart(self.send)
        self.overloaded = ""
        """Why nothing new is to be taken, as the supervisor says."""
        self._loop: asyncio.AbstractEventLoop

    def send(self, message: FromWorker) -> None:
        """Send a message."""
        with self._lock:
            send(self._channel, message)

    def launch(self, number: int, folder: str, on_exit: Callable[[str], None]) -> "RemoteEngine":
        """Have the engine of now of this number, or the next one, connect to the sockets in a folder."""
        engine = self._engines[folder] = RemoteEngine(self, folder, on_exit)
        self.send(RequestEngine(folder, number))
        return engine

    def tell_listening(self) -> None:
        """This process takes connections. From now on the supervisor asks whether its event loop runs."""
        self._loop = asyncio.get_running_loop()
        self.send(Listening())

    def watch(self) -> None:
        """Hear of the ends of engines and of their number, and end when the supervisor is gone, however it went."""
        while (message := receive(self._channel, ToWorker)) is not None:
            if isinstance(message, Overloaded):
                self.overloaded = message.reason
                continue
            if isinstance(message, Ping):
                # A loop that is closed has ended well.
                with suppress(RuntimeError):
                    self._loop.call_soon_threadsafe(self.send, Pong())
                continue
            if not isinstance(message, EngineEnded):
                self.scaling.take(message)
                continue
            engine = self._engines.pop(message.folder, None)
            if engine is not None:
                engine.take_end(message.reason)
        os._exit(1)


class RemoteEngine:
    """An engine of the supervisor, in place of a child process (see `EngineProcess`)."""

    def __init__(self, supervisor: SupervisorClient, folder: str, on_exit: Callable[[str], None]) -> None:
        """`on_exit` is called once, with what can be said of the end."""
        self._supervisor, self._folder, self._on_exit = supervisor, folder, on_exit
        self._ended = threading.Lock()

    @property
    def pid(self) -> int:
        """Process id of the supervisor, whose the engine is."""
        return os.getppid()

    def take_end(self, reason: str) -> None:
        """It has ended, or is left. Only the first reason counts."""
        if self._ended.acquire(blocking=False):
            self._on_exit(reason)

    def end(self, *, at_once: bool = False) -> None:
        """Leave it: the engine ends with the supervisor. May be called again."""
        del at_once
        self.take_end("left")

    def reach(self, folder: str) -> str:
        """Not used: the supervisor has the engine serve others."""
        return folder

    @property
    def is_stopped(self) -> bool:
        """The supervisor looks."""
        return False

    def kill(self, reason: str) -> None:
        """Have it killed, because it hangs: the supervisor will say that it has ended."""
        self._supervisor.send(EngineHangs(self._folder, reason))


def main() -> int:
    """Answer HTTP, as the supervisor says."""
    imports_done()
    if sys.stderr is not None:
        faulthandler.register(STACKS_SIGNAL)
    channel = socket.socket(fileno=0)
    given: WorkerConfig = receive(channel, WorkerConfig)
    supervisor = SupervisorClient(channel)
    threading.Thread(target=supervisor.watch, name="supervisor-watch", daemon=True).start()
    options = given.options
    worker = WorkerContext(
        launch_of=partial(partial, supervisor.launch),
        shared_metrics=SharedMetrics(given.shared_metrics, given.index, given.count),
        shared_adapters=SharedAdapters(given.shared_adapters),
        on_listening=supervisor.tell_listening,
        drain=partial(supervisor.send, Drain()),
        overloaded=lambda: supervisor.overloaded,
        scale=supervisor.scaling.scale,
        follow=supervisor.scaling.follow,
    )
    try:
        with Listener(options, socket.socket(fileno=given.listener)) as listener:
            return run_on_fast_loop(serve_at(listener, given.config, options, worker=worker))
    except (ConfigError, CapacityError, EngineError) as error:
        # A supervisor that is gone need not be told.
        with suppress(OSError):
            supervisor.send(StartFailed(type(error).__name__, str(error)))
        return 1


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)
