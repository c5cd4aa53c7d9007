"""`python -m jaxllm.serving.server.workers`: one of several API server processes.

Not for people: `jaxllm.serving.server.workers.supervisor` starts it.
"""

import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from jaxllm.errors import CapacityError, ConfigError, EngineError
from jaxllm.serving.server.listener import Listener
from jaxllm.serving.server.server import Place, on_fast_loop, serve_at
from jaxllm.serving.server.workers.messages import (
    Attach,
    EngineEnded,
    GaveUp,
    Hangs,
    Line,
    Listening,
    Order,
    receive,
    send,
)
from jaxllm.serving.telemetry.shared_metrics import SharedMetrics


class Supervisor:
    """The line to the process that has the engine. Thread-safe."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._lock = threading.Lock()
        self._engines: dict[str, ServedBy] = {}

    def say(self, line: Line) -> None:
        """Send a line."""
        with self._lock:
            send(self._channel, line)

    def launch(self, folder: str, on_exit: Callable[[str], None]) -> "ServedBy":
        """Have the engine of now, or the next one, connect to the sockets in a folder."""
        engine = self._engines[folder] = ServedBy(self, folder, on_exit)
        self.say(Attach(folder))
        return engine

    def watch(self) -> None:
        """Hear of the ends of engines, and end when the supervisor is gone, however it went."""
        while (ended := receive(self._channel, EngineEnded)) is not None:
            engine = self._engines.pop(ended.folder, None)
            if engine is not None:
                engine.take_end(ended.reason)
        os._exit(1)


class ServedBy:
    """An engine of the supervisor, in place of a child process (see `EngineProcess`)."""

    def __init__(self, supervisor: Supervisor, folder: str, on_exit: Callable[[str], None]) -> None:
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

    def kill(self, reason: str) -> None:
        """Have it killed, because it hangs: the supervisor will say that it has ended."""
        self._supervisor.say(Hangs(self._folder, reason))


def main() -> int:
    """Answer HTTP as ordered."""
    channel = socket.socket(fileno=0)
    order: Order = receive(channel, Order)
    supervisor = Supervisor(channel)
    threading.Thread(target=supervisor.watch, name="supervisor-watch", daemon=True).start()
    options = order.options
    place = Place(
        launch=supervisor.launch,
        shared_metrics=SharedMetrics(order.shared_metrics, order.index, order.count),
        on_listening=partial(supervisor.say, Listening()),
    )
    try:
        with Listener(options, socket.socket(fileno=order.listener)) as listener:
            return on_fast_loop(serve_at(listener, order.config, options, place=place))
    except (ConfigError, CapacityError, EngineError) as error:
        # A supervisor that is gone need not be told.
        with suppress(OSError):
            supervisor.say(GaveUp(type(error).__name__, str(error)))
        return 1


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)
