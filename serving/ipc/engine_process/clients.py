"""The engine's clients: the process that started it and, where several answer HTTP, each of them."""

import logging
import threading
import time
from collections.abc import Iterable
from contextlib import suppress
from queue import SimpleQueue

import zmq

from jaxllm.config.engine_info import EngineInfo
from jaxllm.engine.stats import StepStats
from jaxllm.errors import EngineError
from jaxllm.requests.outputs import EngineOutput
from jaxllm.serving.ipc.engine_process.output_queue import OutputQueue
from jaxllm.serving.ipc.messages import (
    Abort,
    Add,
    AttachClient,
    Configure,
    DetachClient,
    Failed,
    Finish,
    FromEngine,
    Hello,
    Loading,
    Pool,
    Ready,
    Release,
    ToEngine,
)
from jaxllm.serving.ipc.wire import FrameDecoder, FrameEncoder, NumberedDecoder, NumberedEncoder, WireError
from jaxllm.version import __version__

logger = logging.getLogger(__name__)

_CLOSING_SECONDS = 2.0
_BEAT_SECONDS = 1.0


class Client:
    """One client: what waits to be sent to it, and a thread for each direction, which end with it."""

    def __init__(self, folder: str, input_queue: "InputQueue") -> None:
        """`folder` has its sockets; what it says, or what broke the connection, goes into the input queue."""
        self.output_queue = OutputQueue()
        self.folder = folder
        self._input_queue = input_queue
        self._sockets: Sockets

    def open(self) -> None:
        """Make the sockets, for `greet` and `close`."""
        self._sockets = Sockets(self.folder)

    def greet(self) -> Configure:
        """Say hello, and wait for the answer. From now on what is in the queue is sent. Raises `WireError`."""
        sending = threading.Thread(target=self._send, name="send", daemon=True)
        try:
            answer = self._sockets.greet()
        except zmq.ContextTerminated:
            self._sockets.close_input()
            self._sockets.close_output()
            raise
        except WireError:
            self._sockets.close_input()
            sending.start()
            raise
        sending.start()
        return answer

    def listen(self) -> None:
        """Put what it says into the queue, decoded while the device computes; at last what broke the connection."""
        sockets = self._sockets
        try:
            while True:
                self._input_queue.put((self, sockets.receive()))
                if sockets.decoder.opened:
                    self.output_queue.put(Release(sockets.decoder.opened))
                    sockets.decoder.opened = []
        except zmq.ContextTerminated:
            pass
        except Exception as error:  # noqa: BLE001  (the loop tells everybody whom it concerns)
            self._input_queue.put((self, error))
        finally:
            sockets.close_input()

    def close(self) -> None:
        """Let what waits be sent for a moment, and end both threads."""
        self.output_queue.close()
        timer = threading.Timer(_CLOSING_SECONDS, self._sockets.end)
        timer.daemon = True
        timer.start()

    def _send(self) -> None:
        """Encodes while the device computes."""
        try:
            while (message := self.output_queue.take()) is not None:
                try:
                    self._sockets.send(message, self.output_queue.taken)
                except zmq.ContextTerminated:
                    raise
                except Exception as error:  # noqa: BLE001  (without it, the engine would go on and nobody would hear it)
                    self._input_queue.put((self, error))
        except zmq.ContextTerminated:
            pass
        finally:
            self._sockets.close_output()


InputQueue = SimpleQueue[tuple[Client, ToEngine | Exception] | None]
"""Messages to the engine, and who sends them, or what broke a connection; None: the first client is gone."""


class Clients:
    """The clients of a loaded engine. Each gets the outputs of its own requests, and all get the state after a step.

    With one, nobody keeps book. Not thread-safe: for the thread that runs the steps.
    """

    def __init__(self, first: Client, input_queue: InputQueue, info: EngineInfo) -> None:
        """`first` has started the engine: what nobody else has asked for goes to it."""
        self._first, self._input_queue, self._info = first, input_queue, info
        self._clients = [first]
        self._last_beat = 0.0
        self._owners: dict[str, Client] = {}

    def __contains__(self, client: Client) -> bool:
        """Whether this client is still served.

        What a client sent before it died may arrive after its `DetachClient`, since every client has its own thread:
        whoever takes messages ignores those.
        """
        return client in self._clients

    def take(self, client: Client, message: ToEngine | Exception) -> list[str]:
        """Look at a message of this client before the engine obeys it; returns requests that nobody wants any more.

        Raises `EngineError` when what the first client sends is broken.
        """
        client.output_queue.count_taken()
        match message:
            case AttachClient(folder):
                self._attach(folder)
            case DetachClient(folder):
                return [name for gone in list(self._clients) if gone.folder == folder for name in self._detach(gone)]
            case Exception():
                if client is self._first:
                    raise EngineError(str(message)) from message
                logger.error("cannot decode a client's messages; disconnecting it: %s", message)
                client.output_queue.put(Failed("EngineError", str(message)))
                return self._detach(client)
            case _ if client is not self._first:
                self._keep_book(client, message)
        return []

    def _keep_book(self, client: Client, message: ToEngine) -> None:
        match message:
            case Add():
                self._owners.update((each.request_id, client) for each in message.sequences)
            case Pool(name):
                self._owners[name] = client
            case Abort(names):
                self._disown(names)
            case Finish(stopped):
                self._disown(name for name, _ in stopped)

    def orphaned_ids(self, client: Client, expected: Iterable[str], unfinished: Iterable[str]) -> list[str]:
        """The unfinished requests of this client that it expects nothing from; they are ended."""
        known = set(expected)
        found = [name for name in unfinished if name not in known and self._owners.get(name, self._first) is client]
        self._disown(found)
        return found

    def put_outputs(self, outputs: list[EngineOutput], stats: StepStats | None) -> None:
        """Send the outputs of a step to whom they belong; without `stats`, outputs outside of any step."""
        if len(self._clients) == 1:
            self._first.output_queue.put_outputs(outputs, stats)
            return
        shares: dict[Client, list[EngineOutput]] = {client: [] for client in self._clients}
        for output in outputs:
            owner = self._owners.get(output.request_id, self._first)
            shares[owner].append(output)
            if output.finished:
                self._owners.pop(output.request_id, None)
        for client, share in shares.items():
            if share or stats is not None:
                client.output_queue.put_outputs(share, stats)

    def beat(self, stage: str, done: int, total: int) -> None:
        """Tell all, at times, how far long work has come: an engine that is silent counts as one that hangs."""
        now = time.monotonic()
        if now - self._last_beat > _BEAT_SECONDS:
            self._last_beat = now
            for client in self._clients:
                client.output_queue.put(Loading(stage, done, total))

    def include(self, client: Client) -> None:
        """One more, which is told that the engine is ready."""
        client.output_queue.put(Ready(self._info))
        self._clients.append(client)

    def fail(self, failed: Failed) -> None:
        """Tell all that the engine ends here."""
        for client in self._clients:
            client.output_queue.put(failed)

    def _attach(self, folder: str) -> None:
        client = Client(folder, self._input_queue)
        client.open()
        self.include(client)
        threading.Thread(target=self._serve, args=(client,), name="client", daemon=True).start()

    def _serve(self, client: Client) -> None:
        with suppress(zmq.ContextTerminated):
            try:
                # What there is to configure the first has said.
                client.greet()
            except WireError as error:
                self._input_queue.put((client, error))
            else:
                client.listen()

    def _detach(self, client: Client) -> list[str]:
        """Forget a client; returns its requests."""
        if client not in self._clients:
            return []
        self._clients.remove(client)
        names = [name for name, owner in self._owners.items() if owner is client]
        self._disown(names)
        client.close()
        return names

    def _disown(self, names: Iterable[str]) -> None:
        for name in names:
            self._owners.pop(name, None)


class Sockets:
    """A connection for each direction, PULL and PUSH: neither ever drops a message.

    One thread receives and one sends. When both have closed their end, `Sockets.end` returns.
    """

    def __init__(self, folder: str) -> None:
        self._context = zmq.Context()
        self._input = self._context.socket(zmq.PULL)
        self._input.connect(f"ipc://{folder}/input")
        self._output = self._context.socket(zmq.PUSH)
        # With few messages under way, outputs wait in the queue, where they merge.
        self._output.set_hwm(4)
        self._output.connect(f"ipc://{folder}/output")
        self.decoder: FrameDecoder[ToEngine] = FrameDecoder(ToEngine)
        self._numbered = NumberedDecoder(self.decoder)
        self._encoder = NumberedEncoder(FrameEncoder())

    def greet(self) -> Configure:
        """Say hello, and wait for what to do. Before any other thread sends."""
        self.send(Hello(__version__), 0)
        answer = self.receive()
        if not isinstance(answer, Configure):
            raise WireError(f"the answer to Hello is {type(answer).__name__}")
        return answer

    def receive(self) -> ToEngine:
        """Wait for the next message. Raises `WireError`, and `zmq.ContextTerminated` after `end`."""
        frames = [frame.buffer for frame in self._input.recv_multipart(copy=False)]
        return self._numbered.decode(frames)

    def send(self, message: FromEngine, taken: int) -> None:
        """Send a message, and how many of the client's were taken. Raises `zmq.ContextTerminated` after `end`."""
        self._output.send_multipart(self._encoder.encode(message, taken), copy=False)

    def close_input(self) -> None:
        """By the thread that receives."""
        self._input.close(linger=0)

    def close_output(self) -> None:
        """By the thread that sends."""
        self._output.close(linger=0)

    def end(self) -> None:
        """By any thread: interrupt both, and wait until they have closed their ends."""
        self._context.term()
