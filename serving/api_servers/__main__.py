"""`python -m jaxllm.serving.api_servers`: one of several API server processes.

Not for people: `jaxllm.serving.api_servers.supervisor` starts it.
"""

import os
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from jaxllm.errors import CapacityError, ConfigError, EngineError
from jaxllm.serving.api_servers.board import Board
from jaxllm.serving.api_servers.order import Attach, GaveUp, Listening, Order, receive, send
from jaxllm.serving.listener import Listener
from jaxllm.serving.server import Place, on_fast_loop, serve_at


class SharedEngine:
    """The engine behind the supervisor, in the place of a process of our own (see `EngineProcess`)."""

    def __init__(self, channel: socket.socket, folder: str, on_exit: Callable[[str], None]) -> None:
        """The supervisor is asked to connect to the sockets in `folder`."""
        self._on_exit = on_exit
        self._ended = False
        send(channel, Attach(folder))

    @property
    def pid(self) -> int:
        """Process id of the supervisor, through which the engine is reached."""
        return os.getppid()

    def end(self, *, at_once: bool = False) -> None:
        """Leave it: the engine ends with the supervisor. May be called again."""
        del at_once
        if not self._ended:
            self._ended = True
            self._on_exit("left")

    def kill(self) -> None:
        """Leave it at once."""
        self.end()


def main() -> int:
    """Answer HTTP as ordered."""
    channel = socket.socket(fileno=0)
    order: Order = receive(channel, Order)
    threading.Thread(target=_end_with, args=(channel,), name="supervisor-watch", daemon=True).start()
    options = order.options
    place = Place(
        launch=partial(SharedEngine, channel),
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


def _end_with(channel: socket.socket) -> None:
    """End when the supervisor is gone, however it went."""
    receive(channel, Order)
    os._exit(1)


if __name__ == "__main__":
    code = main()
    sys.stderr.flush()
    os._exit(code)
