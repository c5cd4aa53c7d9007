"""Whom the engine serves: whoever started it and, where several processes answer HTTP, each of these directly."""

import threading
from collections.abc import Iterable
from queue import SimpleQueue

from jaxllm.info import EngineInfo
from jaxllm.outputs import EngineOutput
from jaxllm.serving.engine_process.messages import (
    Abort,
    Add,
    Attach,
    Configure,
    Failed,
    Finish,
    Pool,
    Ready,
    Release,
    ToEngine,
)
from jaxllm.serving.engine_process.outbox import Outbox
from jaxllm.serving.engine_process.sockets import Sockets
from jaxllm.serving.engine_process.wire import Encoder
from jaxllm.stats import StepStats


class Client:
    """One client: what waits to be sent to it, and a thread for each direction. They end with the process."""

    def __init__(self, folder: str) -> None:
        """`folder` has its sockets."""
        self.outbox = Outbox()
        self._folder = folder
        self._sockets: Sockets

    def connect(self) -> Configure:
        """Say hello, and wait for the answer. From now on what is in the outbox is sent."""
        self._sockets = Sockets(self._folder)
        threading.Thread(target=self._send, name="send", daemon=True).start()
        return self._sockets.greet()

    def listen(self, inbox: "Inbox") -> None:
        """Put what it says into the inbox, for ever: decoded while the device computes."""
        sockets = self._sockets
        while True:
            inbox.put((self, sockets.receive()))
            if sockets.decoder.opened:
                self.outbox.put(Release(sockets.decoder.opened))
                sockets.decoder.opened = []

    def _send(self) -> None:
        """Encodes while the device computes."""
        encoder = Encoder()
        for message in iter(self.outbox.take, None):
            self._sockets.output.send_multipart(encoder.encode(message), copy=False)


Inbox = SimpleQueue[tuple[Client, ToEngine] | None]
"""Messages to the engine, and who sends them; None: the first client is gone."""


class Clients:
    """The clients of a loaded engine. Each gets the outputs of its own requests, and all get the state after a step.

    With one, nobody keeps book. Not thread-safe: for the thread that runs the steps.
    """

    def __init__(self, first: Client, inbox: Inbox, info: EngineInfo) -> None:
        """`first` has started the engine: what nobody else has asked for goes to it."""
        self._first, self._inbox, self._info = first, inbox, info
        self._clients = [first]
        self._owners: dict[str, Client] = {}

    def notice(self, client: Client, message: ToEngine) -> None:
        """Look at a message of this client, before the engine obeys it: whose requests there are."""
        if isinstance(message, Attach):
            self._attach(message.folder)
        elif client is not self._first:
            match message:
                case Add():
                    self._owners.update((name, client) for name, _ in message.sequences)
                case Pool(name):
                    self._owners[name] = client
                case Abort(names):
                    self._disown(names)
                case Finish(stopped):
                    self._disown(name for name, _ in stopped)

    def put_outputs(self, outputs: list[EngineOutput], stats: StepStats | None) -> None:
        """Send the news of a step to whom they belong; without `stats`, news outside of any step."""
        if len(self._clients) == 1:
            self._first.outbox.put_outputs(outputs, stats)
            return
        shares: dict[Client, list[EngineOutput]] = {client: [] for client in self._clients}
        for output in outputs:
            owner = self._owners.get(output.request_id, self._first)
            shares[owner].append(output)
            if output.finished:
                self._owners.pop(output.request_id, None)
        for client, share in shares.items():
            if share or stats is not None:
                client.outbox.put_outputs(share, stats)

    def include(self, client: Client) -> None:
        """One more, which is told that the engine is ready."""
        client.outbox.put(Ready(self._info))
        self._clients.append(client)

    def fail(self, failed: Failed) -> None:
        """Tell all that the engine ends here."""
        for client in self._clients:
            client.outbox.put(failed)

    def _attach(self, folder: str) -> None:
        client = Client(folder)
        self.include(client)
        threading.Thread(target=self._serve, args=(client,), name="client", daemon=True).start()

    def _serve(self, client: Client) -> None:
        # What there is to configure the first has said.
        client.connect()
        client.listen(self._inbox)

    def _disown(self, names: Iterable[str]) -> None:
        for name in names:
            self._owners.pop(name, None)
