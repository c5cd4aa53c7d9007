"""`python -m jaxllm.serving.ipc.engine_process FOLDER`: an engine behind the sockets in FOLDER.

Not for people: `jaxllm.serving.ipc.client` starts it. It lives as long as its standard input stays open, so it ends
with the process that started it, however that one ends.
"""

import contextlib
import faulthandler
import logging
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from queue import Empty
from typing import Any, Protocol, TypeVar

from jaxllm.child import continue_at_input, imports_done
from jaxllm.config import EngineConfig
from jaxllm.config.engine_info import EngineInfo
from jaxllm.config.progress import Progress
from jaxllm.errors import CapacityError, ConfigError
from jaxllm.load import load_engine
from jaxllm.serving.ipc.engine_process import loop
from jaxllm.serving.ipc.engine_process.clients import Client, Clients, InputQueue
from jaxllm.serving.ipc.messages import STACKS_SIGNAL, Failed, Loading, Ready
from jaxllm.serving.telemetry.logs import configure_logging

logger = logging.getLogger(__name__)

GRACE_SECONDS = 5.0
"""Time for the running step and for cleaning up once the client is gone."""


class Served(Protocol):
    """The interface of an engine that `main` serves, besides a function that runs its steps."""

    @property
    def info(self) -> EngineInfo:
        """The model and its limits."""

    def mark_weights_stale(self, reason: str) -> None:
        """The weights are not those that are wanted."""

    def close(self) -> None:
        """Give back what it holds."""


Kind = TypeVar("Kind", bound=Served)


def main(
    folder: str, load: Callable[[EngineConfig, Progress], Kind], run: Callable[[Kind, InputQueue, Clients], None]
) -> int:
    """Serve the client behind the sockets, and those it tells of, until it is gone: `load` an engine and `run` it."""
    # Ctrl-C and SIGTERM, which reach a whole group of processes, are the client's to obey: it may still drain. Without
    # a client this process ends anyway.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if sys.stderr is not None:
        faulthandler.register(STACKS_SIGNAL)
    imports_done()
    # Nothing but its end comes from there.
    continue_at_input()
    input_queue: InputQueue = InputQueue()
    _start(_watch_client, input_queue, folder)
    client = Client(folder, input_queue)
    client.open()
    configure = client.greet()
    configure_logging(configure.log_level, json_lines=configure.json_logs)
    try:
        engine = _load(configure.config, client, load)
    except (ConfigError, CapacityError) as error:
        client.output_queue.put(Failed(type(error).__name__, str(error)))
    except Exception as error:
        logger.exception("the engine failed")
        client.output_queue.put(_failed(error))
    else:
        if configure.stale_weights is not None:
            engine.mark_weights_stale(configure.stale_weights)
        if _serve(engine, client, input_queue, run):
            return 0
    _wait_for_end(input_queue)
    return 1


def _load(config: EngineConfig, client: Client, load: Callable[[EngineConfig, Progress], Kind]) -> Kind:
    def report(stage: str, done: int, total: int) -> None:
        client.output_queue.put(Loading(stage, done, total))

    engine = load(config, report)
    client.output_queue.put(Ready(engine.info))
    return engine


def _serve(
    engine: Kind, client: Client, input_queue: InputQueue, run: Callable[[Kind, InputQueue, Clients], None]
) -> bool:
    """Run the engine until the client is gone; False, and all are told why, when it fails."""
    clients = Clients(client, input_queue, engine.info)
    _start(client.listen)
    try:
        run(engine, input_queue, clients)
    except Exception as error:
        logger.exception("the engine failed")
        clients.fail(_failed(error))
        return False
    finally:
        engine.close()
    return True


def _failed(error: Exception) -> Failed:
    return Failed("EngineError", f"{type(error).__name__}: {error}")


def _wait_for_end(input_queue: InputQueue) -> None:
    """Wait until the client has read why this is the end, and closes our standard input."""
    with contextlib.suppress(Empty):
        while input_queue.get(timeout=GRACE_SECONDS) is not None:
            pass


def _start(function: Any, *arguments: Any) -> None:
    threading.Thread(target=function, args=arguments, name=function.__name__.strip("_"), daemon=True).start()


def _watch_client(input_queue: InputQueue, folder: str) -> None:
    """End the process when the client is gone: first politely, then at once."""
    sys.stdin.buffer.read()
    input_queue.put(None)
    # Sockets are removed by the client once both sides are connected; it may have died before.
    shutil.rmtree(folder, ignore_errors=True)
    timer = threading.Timer(GRACE_SECONDS, partial(os._exit, 1))
    timer.daemon = True
    timer.start()


if __name__ == "__main__":
    code = main(sys.argv[1], load_engine, loop.run)
    # Threads wait in sockets for ever, and there is nothing left to clean up.
    sys.stderr.flush()
    os._exit(code)
