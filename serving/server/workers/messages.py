"""What the supervisor and an API server process say to each other beside the engine's messages.

Over a pair of sockets, of which the worker's is its standard input: first the worker's configuration, then
messages from the worker, and to it, whenever an engine has ended, that it has. The pair lives as long as both do.
"""

import socket
import struct
from collections.abc import Iterator
from typing import Any, TypeVar

import msgspec

from jaxllm.config import EngineConfig
from jaxllm.errors import CapacityError, ConfigError, EngineError
from jaxllm.serving.options.server import ServerOptions

_LENGTH = struct.Struct("!I")
_ERRORS = {"ConfigError": ConfigError, "CapacityError": CapacityError}


class WorkerConfig(msgspec.Struct, kw_only=True):
    """What a worker is to do. `listener` and `shared_metrics` are file descriptors that it inherits."""

    index: int
    count: int
    listener: int
    shared_metrics: int
    config: EngineConfig
    options: ServerOptions


class EngineEnded(msgspec.Struct):
    """The engine that was connected to the sockets in this folder is gone, and what can be said of that."""

    folder: str
    reason: str


class RequestEngine(msgspec.Struct, tag=True):
    """The worker's sockets for the engine lie in this folder."""

    folder: str


class EngineHangs(msgspec.Struct, tag=True):
    """The engine that is connected to the sockets in this folder does not answer: it is to be killed."""

    folder: str
    reason: str


class Listening(msgspec.Struct, tag=True):
    """The worker takes connections."""


class StartFailed(msgspec.Struct, tag=True):
    """The worker could not start: the name of a class in `jaxllm.errors`, and why."""

    kind: str
    message: str

    def error(self) -> Exception:
        """The error, as the worker met it."""
        return _ERRORS.get(self.kind, EngineError)(self.message)


FromWorker = RequestEngine | EngineHangs | Listening | StartFailed
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
    """What a worker says, until it is gone."""
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
