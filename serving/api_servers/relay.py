"""Between one engine and several API server processes: the engine sees one client, and each of them an engine."""

import itertools
import threading
from collections.abc import Callable
from typing import Any

import zmq

from jaxllm.errors import EngineError
from jaxllm.info import EngineInfo
from jaxllm.outputs import EngineOutput
from jaxllm.serving.engine_process.messages import (
    Abort,
    Add,
    Failed,
    Finish,
    FromEngine,
    Outputs,
    Pong,
    Pool,
    Ready,
    Release,
    Reply,
    ResetPrefixCache,
    ToEngine,
)
from jaxllm.serving.engine_process.outbox import Outbox
from jaxllm.serving.engine_process.sockets import Sockets
from jaxllm.serving.engine_process.wire import Encoder
from jaxllm.stats import StepStats

_POLL_MS = 200

Observer = Callable[[StepStats | None, int], None]
"""Called with the state after a step and the number of tokens in it."""


class Relay:
    """Sends each process the outputs of its own requests, and everything that is about the engine as a whole.

    `forward` takes messages for the engine. `on_message` and `on_end` are for its `EngineConnection`. Thread-safe.
    """

    def __init__(self, forward: Callable[[ToEngine], None], observer: Observer) -> None:
        self._forward, self._observer = forward, observer
        self._lock = threading.Lock()
        self._ports: list[Port] = []
        self._owners: dict[str, Port] = {}
        self._numbers = itertools.count()
        self._asked: dict[int, tuple[Port, int]] = {}
        self._greeting: Ready | Failed | None = None

    def attach(self, folder: str) -> None:
        """A process has made its sockets in this folder."""
        port = Port(folder, self._take)
        with self._lock:
            self._ports.append(port)
            if self._greeting is not None:
                port.outbox.put(self._greeting)
        port.start()

    def ready(self, info: EngineInfo) -> None:
        """The engine is ready: tell those that wait, and those to come."""
        self._tell(Ready(info))

    def close(self) -> None:
        """End all threads."""
        with self._lock:
            for port in self._ports:
                port.close()

    def _tell(self, greeting: Ready | Failed) -> None:
        with self._lock:
            self._greeting = greeting
            for port in self._ports:
                port.outbox.put(greeting)

    def on_end(self, error: EngineError) -> None:
        """The engine has ended."""
        self._tell(Failed("EngineError", str(error)))

    def on_message(self, message: FromEngine) -> None:
        """The engine has said something."""
        match message:
            case Outputs(outputs, stats):
                self._share(outputs, stats)
            case Reply(number, result):
                with self._lock:
                    port, own_number = self._asked.pop(number)
                port.outbox.put(Reply(own_number, result))
            case Pong():
                for port in self._ports:
                    port.outbox.put(message)

    def _share(self, outputs: list[EngineOutput], stats: StepStats | None) -> None:
        with self._lock:
            shares: dict[Port, list[EngineOutput]] = {port: [] for port in self._ports}
            for output in outputs:
                # Those of nobody were aborted while they were on their way.
                port = self._owners.get(output.request_id)
                if port is not None:
                    shares[port].append(output)
                    if output.finished:
                        del self._owners[output.request_id]
        for port, share in shares.items():
            port.outbox.put_outputs(share, stats)
        self._observer(stats, sum(len(output.token_ids) for output in outputs))

    def _take(self, port: "Port", message: ToEngine) -> None:
        """A process has said something."""
        with self._lock:
            match message:
                case Add():
                    self._owners.update((name, port) for name, _ in message.sequences)
                case Pool(name):
                    self._owners[name] = port
                case Abort(names):
                    self._disown(names)
                case Finish(stopped):
                    self._disown([name for name, _ in stopped])
                case ResetPrefixCache(number):
                    message = ResetPrefixCache(next(self._numbers))
                    self._asked[message.number] = (port, number)
        self._forward(message)

    def _disown(self, names: list[str]) -> None:
        for name in names:
            self._owners.pop(name, None)


class Port:
    """The engine's end of one process's sockets, with a thread for each direction."""

    def __init__(self, folder: str, on_message: Callable[["Port", ToEngine], None]) -> None:
        self.outbox = Outbox()
        self._folder, self._on_message = folder, on_message
        self._closing = threading.Event()

    def start(self) -> None:
        """Connect, and carry messages both ways until `close`."""
        threading.Thread(target=self._run, name="api-server-input", daemon=True).start()

    def close(self) -> None:
        """End the threads soon."""
        self._closing.set()
        self.outbox.close()

    def _run(self) -> None:
        sockets = Sockets(self._folder)
        # What it asks for (`Configure`) the supervisor knows already.
        sockets.greet()
        threading.Thread(target=self._send, args=(sockets,), name="api-server-output", daemon=True).start()
        while self._wait(sockets.input, zmq.POLLIN):
            self._on_message(self, sockets.receive())
            if sockets.decoder.opened:
                self.outbox.put(Release(sockets.decoder.opened))
                sockets.decoder.opened = []
        sockets.input.close(linger=0)

    def _send(self, sockets: Sockets) -> None:
        encoder = Encoder()
        for message in iter(self.outbox.take, None):
            if not self._wait(sockets.output, zmq.POLLOUT):
                break
            sockets.output.send_multipart(encoder.encode(message), copy=False)
        sockets.output.close(linger=_POLL_MS)

    def _wait(self, socket: Any, event: int) -> bool:
        """Wait until the socket can be used; False when it is time to end."""
        while not socket.poll(_POLL_MS, event):
            if self._closing.is_set():
                return False
        return True
