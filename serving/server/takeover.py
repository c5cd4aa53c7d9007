"""A server hands its listening socket to its successor (`--takeover`), so that no connection is refused or cut.

Both are on the same machine and of the same user. The server that runs waits at an abstract Unix socket, whose name
comes from the address that it serves. Its successor gets the listening socket there, loads its engine, and says when it
takes connections. Only then the first one leaves. If the successor ends before, nothing has happened.
"""

import asyncio
import hashlib
import logging
import os
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

from jaxllm.errors import ConfigError
from jaxllm.serving.options.server import ServerOptions

_log = logging.getLogger(__name__)

_ASKED, _SOCKET, _SERVING, _LEFT = b"take", b"sock", b"live", b"left"
"""The messages, in their order; the first and third are the successor's. Each has four bytes."""
_SIZE = 4
_ANSWER_SECONDS = 10.0
"""Seconds that a server has for its answers; another successor may be talking to it."""
_PEER = struct.Struct("3i")
_IS_POSSIBLE = hasattr(socket, "SO_PEERCRED")


class Predecessor:
    """The server that serves an address now, which has given us its `socket`."""

    def __init__(self, channel: socket.socket, taken: socket.socket, pid: int) -> None:
        self._channel = channel
        self.socket = taken
        """The listening socket."""
        self.pid = pid

    @classmethod
    def find(cls, options: ServerOptions) -> Self | None:
        """The server at the address of these options; None if none of this user is there.

        Raises `ConfigError` for one of another user, and one that does not answer.
        """
        if not _IS_POSSIBLE:
            raise ConfigError("takeover: only possible on Linux; start without it")
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            channel.settimeout(_ANSWER_SECONDS)
            channel.connect(_name_of(_address_of(options)))
            user, pid = _peer_of(channel)
            if user != os.geteuid():
                raise ConfigError("takeover: the server there is another user's")
            channel.sendall(_ASKED)
            message, files, _, _ = socket.recv_fds(channel, _SIZE, 1)
            if message != _SOCKET or not files:
                raise ConfigError(f"takeover: the server there (process {pid}) does not give its socket")
            os.set_inheritable(files[0], False)
            taken = socket.socket(fileno=files[0])
        except (ConnectionRefusedError, FileNotFoundError):
            channel.close()
            return None
        except OSError as error:
            channel.close()
            raise ConfigError(
                f"takeover: the server there does not answer ({error}); another one may be taking over"
            ) from None
        except ConfigError:
            channel.close()
            raise
        return cls(channel, taken, pid)

    def relieve(self) -> None:
        """We take connections: it may leave. Returns when its place is free; what goes wrong is logged."""
        try:
            self._channel.sendall(_SERVING)
            if self._channel.recv(_SIZE) != _LEFT:
                _log.warning("the server before this one (process %d) ended without an answer", self.pid)
        except OSError as error:
            _log.warning("the server before this one (process %d) does not leave: %s", self.pid, error)

    def close(self) -> None:
        """Talk to it no more. If it was not relieved, it goes on as before."""
        self._channel.close()


class Handover:
    """Waits for a successor, as an asynchronous context manager. Where that is not possible, it does nothing."""

    def __init__(self, listening: socket.socket, on_leave: Callable[[], None]) -> None:
        """`on_leave` is called when a successor takes connections from the `listening` socket."""
        self._listening, self._on_leave = listening, on_leave
        self._control: socket.socket | None = None
        self._waiting: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        if _IS_POSSIBLE:
            control = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                control.bind(_name_of(self._listening.getsockname()))
                control.listen()
            except OSError as error:
                control.close()
                _log.warning("no other server will be able to take over from this one: %s", error.strerror)
                return self
            control.setblocking(False)
            self._control = control
            self._waiting = asyncio.create_task(self._wait())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            await asyncio.gather(self._waiting, return_exceptions=True)
        if self._control is not None:
            self._control.close()

    async def _wait(self) -> None:
        loop = asyncio.get_running_loop()
        assert self._control is not None
        while True:
            channel, _ = await loop.sock_accept(self._control)
            with channel:
                channel.setblocking(False)
                try:
                    if await self._give(loop, channel):
                        return
                except (OSError, TimeoutError) as error:
                    _log.warning("a successor went away: %s", error)

    async def _give(self, loop: asyncio.AbstractEventLoop, channel: socket.socket) -> bool:
        """Whether we have a successor."""
        user, pid = _peer_of(channel)
        if user != os.geteuid():
            _log.warning("process %d of user %d wanted to take over: only those of the same user may", pid, user)
            return False
        async with asyncio.timeout(_ANSWER_SECONDS):
            if await loop.sock_recv(channel, _SIZE) != _ASKED:
                return False
        socket.send_fds(channel, [_SOCKET], [self._listening.fileno()])
        _log.info("process %d gets ready to take over", pid)
        # It loads a model: that may take as long as it likes.
        if await loop.sock_recv(channel, _SIZE) != _SERVING:
            _log.warning("process %d ended before it could take over", pid)
            return False
        _log.info("process %d takes over", pid)
        assert self._control is not None
        # Its own name, from now on.
        self._control.close()
        self._control = None
        with suppress(OSError):
            channel.send(_LEFT)
        self._on_leave()
        return True


def _peer_of(channel: socket.socket) -> tuple[int, int]:
    """User and process at the other end, as the kernel knows them."""
    found = channel.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size)
    pid, user, _ = _PEER.unpack(found)
    return user, pid


def _address_of(options: ServerOptions) -> str | tuple[str, int]:
    """As `getsockname` tells it. Raises `ConfigError`."""
    if options.uds is not None:
        return str(Path(options.uds))
    try:
        found = socket.getaddrinfo(options.host or None, options.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except socket.gaierror as error:
        raise ConfigError(f"host={options.host!r}: {error.strerror}") from None
    address = found[0][4]
    return str(address[0]), int(address[1])


def _name_of(address: str | bytes | tuple[str | int, ...]) -> bytes:
    """The name of the socket for who serves an address: abstract, so that nothing is left of a server that was killed.

    It belongs to the network namespace, as ports do.
    """
    served = str(Path(address).absolute()) if isinstance(address, str) else repr(tuple(address[:2]))
    digest = hashlib.sha256(f"{os.geteuid()} {served}".encode()).hexdigest()[:32]
    return f"\0jaxllm-takeover-{digest}".encode()
