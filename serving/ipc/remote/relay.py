"""Carries messages between a TCP socket and the local sockets of engines and their clients."""

import logging
import socket
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, SimpleQueue
from typing import Any

import msgspec
import zmq

from jaxllm.serving.ipc.remote.messages import CHANNEL, CONTROL, WINDOW, Taken

logger = logging.getLogger(__name__)

_TICK_MS = 100
_AT_ONCE = 64
"""Messages that are read of one socket before others have their turn."""


@dataclass(eq=False)
class Pipe:
    """A channel: what comes from `source` goes to the peer, what comes from there goes to `sink`."""

    channel: int
    peer: bytes
    source: zmq.Socket[bytes]
    sink: zmq.Socket[bytes]
    pending: deque[Sequence[Any]] = field(default_factory=deque)
    """From the peer, for the sink, which takes nothing now."""
    under_way: int = 0
    """Messages to the peer that have not reached their socket there."""
    taken: int = 0
    """Messages from the peer that have reached the sink, and that the peer was not told of yet."""

    def deliver(self) -> None:
        """Give the sink what it takes."""
        with suppress(zmq.Again):
            while self.pending:
                self.sink.send_multipart(self.pending[0], zmq.NOBLOCK, copy=False)
                self.pending.popleft()
                self.taken += 1

    def close(self) -> None:
        """Close both sockets."""
        self.source.close(linger=0)
        self.sink.close(linger=0)


class Relay:
    """One thread's loop over all sockets. `wire` is the TCP socket; a peer is the first frame of what a ROUTER says.

    `call` may be called from any thread, everything else belongs to the one that runs `step`.
    """

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        wire: zmq.Socket[bytes],
        on_control: Callable[[bytes, Any, int], None],
    ) -> None:
        """`on_control` is called with the peer, the bytes of a message on channel 0, and the descriptor it came by."""
        self.pipes: dict[tuple[bytes, int], Pipe] = {}
        self._context, self._wire, self._on_control = context, wire, on_control
        self._has_peers = wire.type == zmq.ROUTER
        self._calls: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._woken, self._wake = socket.socketpair()
        self._wake.setblocking(False)

    def call(self, function: Callable[[], None]) -> None:
        """Have this called in the loop's thread."""
        self._calls.put(function)
        with suppress(OSError):
            self._wake.send(b"x")

    def open(self, peer: bytes, channel: int, folder: str, *, bind: bool) -> Pipe:
        """A channel for the sockets in a folder: on the client's side they are there already, else `bind`."""
        # As an engine and its client would have them, see `EngineConnection` and `Sockets`.
        names = ("output", "input") if bind else ("input", "output")
        source, sink = self._context.socket(zmq.PULL), self._context.socket(zmq.PUSH)
        for end, name in ((source, names[0]), (sink, names[1])):
            end.set_hwm(4)
            address = f"ipc://{folder}/{name}"
            end.bind(address) if bind else end.connect(address)
        pipe = self.pipes[peer, channel] = Pipe(channel, peer, source, sink)
        return pipe

    def close(self, peer: bytes, channel: int) -> None:
        """A channel is over."""
        pipe = self.pipes.pop((peer, channel), None)
        if pipe is not None:
            pipe.close()

    def close_all(self, peer: bytes) -> None:
        """All channels of a peer are over."""
        for known, channel in list(self.pipes):
            if known == peer:
                self.close(peer, channel)

    def send(self, peer: bytes, message: Any) -> None:
        """A message on channel 0."""
        self._send(peer, CONTROL, [msgspec.msgpack.encode(message)])

    def _send(self, peer: bytes, channel: int, frames: Sequence[Any]) -> None:
        head = [peer] if self._has_peers else []
        # A peer that is gone is missed soon.
        with suppress(zmq.Again):
            self._wire.send_multipart([*head, CHANNEL.pack(channel), *frames], zmq.NOBLOCK, copy=False)

    def step(self) -> None:
        """Wait for something for a moment, and carry what there is."""
        poller = zmq.Poller()
        poller.register(self._wire, zmq.POLLIN)
        poller.register(self._woken, zmq.POLLIN)
        pipes = list(self.pipes.values())
        for pipe in pipes:
            if pipe.under_way < WINDOW:
                poller.register(pipe.source, zmq.POLLIN)
            if pipe.pending:
                poller.register(pipe.sink, zmq.POLLOUT)
        ready = dict(poller.poll(_TICK_MS))
        if self._woken.fileno() in ready:
            self._woken.recv(4096)
        for pipe in pipes:
            if pipe.source in ready:
                self.read(pipe)
        if self._wire in ready:
            self._hear()
        self._run_calls()
        for pipe in list(self.pipes.values()):
            pipe.deliver()
            if pipe.taken:
                self.send(pipe.peer, Taken(pipe.channel, pipe.taken))
                pipe.taken = 0

    def _run_calls(self) -> None:
        with suppress(Empty):
            while True:
                self._calls.get_nowait()()

    def read(self, pipe: Pipe) -> None:
        """Send what the source has."""
        with suppress(zmq.Again):
            while pipe.under_way < WINDOW:
                frames = pipe.source.recv_multipart(zmq.NOBLOCK, copy=False)
                pipe.under_way += 1
                self._send(pipe.peer, pipe.channel, frames)

    def _hear(self) -> None:
        with suppress(zmq.Again):
            for _ in range(_AT_ONCE):
                frames = self._wire.recv_multipart(zmq.NOBLOCK, copy=False)
                peer = frames.pop(0).bytes if self._has_peers else b""
                self._take(peer, frames)

    def _take(self, peer: bytes, frames: list[Any]) -> None:
        if len(frames) < 2 or len(frames[0].buffer) != CHANNEL.size:
            self._on_control(peer, None, -1)
            return
        (channel,) = CHANNEL.unpack(frames[0].buffer)
        if channel == CONTROL:
            self._on_control(peer, frames[1].bytes, frames[1].get(zmq.SRCFD))
        elif (pipe := self.pipes.get((peer, channel))) is not None:
            pipe.pending.append(frames[1:])

    def count_taken(self, peer: bytes, message: Taken) -> None:
        """The peer's acknowledgement of sent messages."""
        pipe = self.pipes.get((peer, message.channel))
        if pipe is not None:
            pipe.under_way = max(0, pipe.under_way - message.count)

    def end(self) -> None:
        """Close everything but the context."""
        for pipe in self.pipes.values():
            pipe.close()
        self.pipes.clear()
        self._wire.close(linger=200)
        self._woken.close()
        self._wake.close()
