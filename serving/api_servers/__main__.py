"""`python -m jaxllm.serving.api_servers`: one of several API server processes.

Not for people: `jaxllm.serving.api_servers.supervisor` starts it.
"""

import os
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from functools import partial

from jaxllm.errors import CapacityError, ConfigError, EngineError
from jaxllm.serving.api_servers.board import Board
from jaxllm.serving.api_servers.order import Attach, EngineEnded, GaveUp, Listening, Order, receive, send
from jaxllm.serving.listener import Listener
from jaxllm.serving.server import Place, on_fast_loop, serve_at


class SharedEngine:
    """The engine of the supervisor, in the place of a process of our own (see `EngineProcess`)."""

    def __init__(self, channel: socket.socket, end: "Future[str]", folder: str, on_exit: Callable[[str], None]) -> None:
        """The supervisor has the engine connect to the sockets in `folder`; `end` tells why the engine has ended."""
        self._end = end
        send(channel, Attach(folder))
        end.add_done_callback(lambda reason: on_exit(reason.result()))

    @property
    def pid(self) -> int:
        """Process id of the supervisor, whose the engine is."""
        return os.getppid()

    def end(self, *, at_once: bool = False) -> None:
        """Leave it: the engine ends with the supervisor. May be called again."""
        del at_once
        _settle(self._end, "left")

    def kill(self, reason: str) -> None:
        """Leave it at once."""
        del reason
        self.end()


def main() -> int:
    """Answer HTTP as ordered."""
    channel = socket.socket(fileno=0)
    order: Order = receive(channel, Order)
    engine_end: Future[str] = Future()
    threading.Thread(target=_watch, args=(channel, engine_end), name="supervisor-watch", daemon=True).start()
    options = order.options
    place = Place(
        launch=partial(SharedEngine, channel, engine_end),
        board=Board(order.board, order.index, order.count),
        on_listening=partial(send, channel, Listening()),
    )
    try:
        with Listener(options, socket.socket(fileno=order.listener)) as listener:
            return on_fast_loop(serve_at(listener, order.config, options, place=place))
    except (ConfigError, CapacityError, EngineError) as error:
        # A supervisor that is gone need not be told.
        with suppress(OSError):
            send(channel, GaveUp(type(error).__name__, str(error)))
        return 1


def _watch(channel: socket.socket, engine_end: "Future[str]") -> None:
    """Hear of the end of the engine, and end when the supervisor is gone, however it went."""
    while (ended := receive(channel, EngineEnded)) is not None:
        _settle(engine_end, ended.reason)
    os._exit(1)


def _settle(future: "Future[str]", result: str) -> None:
    """Set the result, unless there is one."""
    with suppress(InvalidStateError):
        future.set_result(result)


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)
