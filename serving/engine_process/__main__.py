"""`python -m jaxllm.serving.engine_process FOLDER`: an engine behind the sockets in FOLDER.

Not for people: `jaxllm.serving.clients` starts it. It lives as long as its standard input stays open, so it ends with
the process that started it, however that one ends.
"""

import contextlib
import logging
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from queue import Empty
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import zmq

from jaxllm.config import EngineConfig
from jaxllm.errors import CapacityError, ConfigError
from jaxllm.info import EngineInfo
from jaxllm.progress import Progress
from jaxllm.serving.engine_process import loop
from jaxllm.serving.engine_process.loop import Inbox
from jaxllm.serving.engine_process.messages import Configure, Failed, Loading, Ready, Release
from jaxllm.serving.engine_process.outbox import Outbox
from jaxllm.serving.engine_process.sockets import Sockets
from jaxllm.serving.engine_process.wire import Encoder

if TYPE_CHECKING:
    from jaxllm.engine import Engine
    from jaxllm.pooling.engine import PoolingEngine

logger = logging.getLogger(__name__)

GRACE_SECONDS = 5.0
"""Time for the running step and for cleaning up once the client is gone."""


class Served(Protocol):
    """What an engine must have to be served by `main`, beside a function that runs its steps."""

    @property
    def info(self) -> EngineInfo:
        """The model and its limits."""

    def close(self) -> None:
        """Give back what it holds."""


Kind = TypeVar("Kind", bound=Served)


def main(
    folder: str, load: Callable[[EngineConfig, Progress], Kind], run: Callable[[Kind, Inbox, Outbox], None]
) -> int:
    """Serve the client behind the sockets until it is gone: `load` an engine, and let it `run`."""
    # Ctrl-C and SIGTERM, which reach a whole group of processes, are the client's to obey: it may still drain.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    inbox: Inbox = Inbox()
    outbox = Outbox()
    _start(_watch_client, inbox, folder)
    sockets = Sockets(folder)
    _start(_send, sockets.output, outbox)
    configure = sockets.greet()
    _configure_logging(configure)
    try:
        _serve(configure, sockets, inbox, outbox, load, run)
    except (ConfigError, CapacityError) as error:
        outbox.put(Failed(type(error).__name__, str(error)))
    except Exception as error:
        logger.exception("the engine failed")
        outbox.put(Failed("EngineError", f"{type(error).__name__}: {error}"))
    else:
        return 0
    _wait_for_end(inbox)
    return 1


def _serve(
    configure: Configure,
    sockets: Sockets,
    inbox: Inbox,
    outbox: Outbox,
    load: Callable[[EngineConfig, Progress], Kind],
    run: Callable[[Kind, Inbox, Outbox], None],
) -> None:
    def report(stage: str, done: int, total: int) -> None:
        outbox.put(Loading(stage, done, total))

    engine = load(configure.config, report)
    try:
        outbox.put(Ready(engine.info))
        _start(_receive, sockets, inbox, outbox)
        run(engine, inbox, outbox)
    finally:
        engine.close()


def _load_engine(config: EngineConfig, report: Progress) -> "Engine | PoolingEngine":
    from jaxllm.load import load_engine

    return load_engine(config, report)


def _wait_for_end(inbox: Inbox) -> None:
    """Wait until the client has read why this is the end, and closes our standard input."""
    with contextlib.suppress(Empty):
        while inbox.get(timeout=GRACE_SECONDS) is not None:
            pass


def _start(function: Any, *arguments: Any) -> None:
    threading.Thread(target=function, args=arguments, name=function.__name__.strip("_"), daemon=True).start()


def _receive(sockets: Sockets, inbox: Inbox, outbox: Outbox) -> None:
    """The input thread: decodes while the device computes."""
    while True:
        inbox.put(sockets.receive())
        if sockets.decoder.opened:
            outbox.put(Release(sockets.decoder.opened))
            sockets.decoder.opened = []


def _send(socket: "zmq.Socket[bytes]", outbox: Outbox) -> None:
    """The output thread: encodes while the device computes."""
    encoder = Encoder()
    for message in iter(outbox.take, None):
        socket.send_multipart(encoder.encode(message), copy=False)


def _watch_client(inbox: Inbox, folder: str) -> None:
    """End the process when the client is gone: first politely, then at once."""
    sys.stdin.buffer.read()
    inbox.put(None)
    # Sockets are removed by the client once both sides are connected; it may have died before.
    shutil.rmtree(folder, ignore_errors=True)
    timer = threading.Timer(GRACE_SECONDS, partial(os._exit, 1))
    timer.daemon = True
    timer.start()


def _configure_logging(configure: Configure) -> None:
    from jaxllm.serving.logs import configure_logging

    configure_logging(configure.log_level, json_lines=configure.json_logs)


if __name__ == "__main__":
    code = main(sys.argv[1], _load_engine, loop.run)
    # Threads wait in sockets for ever, and there is nothing left to clean up.
    sys.stderr.flush()
    os._exit(code)
