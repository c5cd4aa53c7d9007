"""Messages between the supervisor and an API server process, alongside the engine's messages.

They go over a pair of sockets; the worker's socket is its standard input. First comes the worker's configuration,
then messages from the worker, and to it: that an engine has ended, and that their number changes. The pair lives as
long as both do.
"""

import signal
import socket
import struct
from collections.abc import Callable, Iterator
from typing import Any, Literal, TypeVar

import msgspec

from jaxllm.config import EngineConfig
from jaxllm.errors import (
    CapacityError,
    ConfigError,
    EngineError,
    RequestError,
    ScalingBusyError,
    ScalingTimeoutError,
)
from jaxllm.serving.options.server import ServerOptions

STACKS_SIGNAL = signal.SIGUSR2
"""Has an API server process write to its log what each of its threads does. SIGUSR1 has it leave."""

_LENGTH = struct.Struct("!I")
_KINDS = (ConfigError, CapacityError, RequestError, ScalingTimeoutError, ScalingBusyError)
_ERRORS: dict[str, Callable[[str], Exception]] = {kind.__name__: kind for kind in _KINDS}


class WorkerConfig(msgspec.Struct, kw_only=True):
    """The instructions for a worker. It inherits the files `listener`, `shared_metrics`, `shared_adapters`."""

    index: int
    count: int
    listener: int
    shared_metrics: int
    shared_adapters: int
    config: EngineConfig
    options: ServerOptions


class EngineEnded(msgspec.Struct, tag=True):
    """The engine that was connected to the sockets in this folder is gone, and what can be said of that."""

    folder: str
    reason: str


class RequestEngine(msgspec.Struct, tag=True):
    """The worker's sockets for an engine, by its number, lie in this folder."""

    folder: str
    engine: int


class EngineHangs(msgspec.Struct, tag=True):
    """The engine that is connected to the sockets in this folder does not answer: it is to be killed."""

    folder: str
    reason: str


class Listening(msgspec.Struct, tag=True):
    """The worker takes connections."""


class Pong(msgspec.Struct, tag=True):
    """The worker's event loop runs: the answer to `Ping`."""


class Drain(msgspec.Struct, tag=True):
    """The operator asked the worker to have the server end well."""


class StartFailed(msgspec.Struct, tag=True):
    """The worker could not start: the name of a class in `jaxllm.errors`, and why."""

    kind: str
    message: str

    def error(self) -> Exception:
        """The error, as the worker met it."""
        return _ERRORS.get(self.kind, EngineError)(self.message)


class Scale(msgspec.Struct, tag=True):
    """Somebody asks for so many engines; answered by `Scaled`."""

    size: int
    drain_timeout: float


class Refusable(msgspec.Struct):
    """An answer: empty, or the name of a class in `jaxllm.errors` and what it says."""

    kind: str = ""
    message: str = ""

    def check(self) -> None:
        """Raise the error."""
        if self.kind:
            raise _ERRORS.get(self.kind, EngineError)(self.message)


class Scaled(Refusable, tag=True):
    """The number of engines was changed, or not."""


class Resize(msgspec.Struct, tag=True):
    """A worker's part of it, for the engines from `size` on: answered by `Resized`.

    `grow`: use them; `drain`: send nothing new to them, and finish what they have; `remove`: leave them.
    """

    step: Literal["grow", "drain", "remove"]
    size: int
    seconds: float


class Resized(Refusable, tag=True):
    """The worker has done its part, or could not."""


class Overloaded(msgspec.Struct, tag=True):
    """Why nothing new is to be taken; empty: it may be."""

    reason: str


class Ping(msgspec.Struct, tag=True):
    """Does the event loop run? Only to those that listen; answered by `Pong`."""


class ScalingTo(msgspec.Struct, tag=True):
    """There will be so many engines; None: nothing is changed any more."""

    size: int | None


FromWorker = RequestEngine | EngineHangs | Listening | Pong | Drain | StartFailed | Scale | Resized
ToWorker = EngineEnded | Overloaded | Ping | Resize | Scaled | ScalingTo
Message = TypeVar("Message")


def send(channel: socket.socket, message: Any) -> None:
    """Send one message. A peer that is gone is noticed elsewhere."""
    data = msgspec.json.encode(message)
    channel.sendall(_LENGTH.pack(len(data)) + data)


def receive(channel: socket.socket, kind: Any) -> Any:
    """The next message; None when the peer is gone."""
    head = _read(channel, _LENGTH.size)
    if head is None:
        return None
    data = _read(channel, *_LENGTH.unpack(head))
    return None if data is None else msgspec.json.decode(data, type=kind)


def messages_from(channel: socket.socket) -> Iterator[FromWorker]:
    """The messages of a worker, until it is gone."""
    while (message := receive(channel, FromWorker)) is not None:
        yield message


def _read(channel: socket.socket, size: int) -> bytes | None:
    parts = bytearray()
    while len(parts) < size:
        try:
            part = channel.recv(size - len(parts))
        except ConnectionResetError:
            return None
        if not part:
            return None
        parts += part
    return bytes(parts)
