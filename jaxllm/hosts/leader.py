"""The first process of an engine: it tells the others of every call of a program before it makes it."""

import logging
import threading
import time
from collections.abc import Sequence
from typing import Any

import msgspec
import zmq

from jaxllm.errors import EngineError
from jaxllm.hosts.group import Group, Timing, end_process
from jaxllm.hosts.messages import (
    FROM_FOLLOWER,
    Beat,
    End,
    Ended,
    FromLeader,
    Gathered,
    Hello,
    Refused,
    Report,
    Welcome,
    call_bytes,
    encode,
)
from jaxllm.hosts.placement import Placement
from jaxllm.hosts.sockets import leader_socket
from jaxllm.version import __version__

logger = logging.getLogger(__name__)

_GRACE = 5.0
"""Seconds for the others to end when this process does."""
_PATIENCE = 30.0
"""Seconds after which a log tells that others are waited for."""
_POLL = 0.02
"""Seconds between looks at what has come. Nothing that comes is urgent: followers do not answer calls."""


class _Peer:
    """A follower, as the first process knows it."""

    def __init__(self, rank: int, identity: bytes, host: str) -> None:
        self.rank, self.identity, self.host = rank, identity, host
        self.heard = time.monotonic()

    def __str__(self) -> str:
        return f"process {self.rank} ({self.host})"


class LeaderGroup(Group):
    """`join` first. `publish` is called by one thread; another one listens and sends signs of life."""

    def __init__(
        self,
        place: Placement,
        secret: str | None,
        timing: Timing = Timing(),  # noqa: B008 (frozen)
    ) -> None:
        """Raises `ConfigError` where the address cannot be had."""
        super().__init__(place)
        self._timing = timing
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        try:
            self._socket = leader_socket(self._context, place, secret)
        except BaseException:
            self._context.term()
            raise
        self._lock = threading.Lock()
        """Guards the socket: a step's thread sends, and the listener sends and receives."""
        self._changed = threading.Condition()
        self._peers: dict[bytes, _Peer] = {}
        self._reports: dict[str, dict[int, Any]] = {}
        self._failure: str | None = None
        self._is_awaited = False
        self._has_begun = self._is_closing = self._is_closed = False
        self._number = 0
        self._identities: tuple[bytes, ...] = ()
        self._listener = threading.Thread(target=self._listen, name="followers", daemon=True)
        self._listener.start()

    def join(self, timeout: float) -> None:
        """Wait for all others. Raises `EngineError` for those that have not come within `timeout` seconds."""
        wanted, until = self.place.size - 1, time.monotonic() + timeout
        while not self._wait(lambda: len(self._peers) == wanted, min(_PATIENCE, max(0.0, until - time.monotonic()))):
            if time.monotonic() < until:
                logger.info("%d of %d processes are connected", len(self._peers) + 1, self.place.size)
                continue
            here = {peer.rank for peer in self._peers.values()}
            missing = [str(rank) for rank in range(1, self.place.size) if rank not in here]
            raise EngineError(
                f"process {', '.join(missing)} of {self.place.size} did not connect within {timeout:g} s: it must "
                f"reach {self.place.address}:{self.place.port}, with the same secret if one is set"
            )
        self._has_begun = True
        self._identities = tuple(self._peers)
        self._send_all(Welcome())

    def gather(self, stage: str, value: Any) -> list[Any]:
        """See `Group.gather`."""
        reports = self._reports.setdefault(stage, {})
        reports[0] = value
        self._wait(lambda: len(reports) == self.place.size, None)
        values = [reports[rank] for rank in range(self.place.size)]
        # What the others get is what all get: without tuples, say.
        sent = Gathered(stage, values)
        self._send_all(sent)
        return list(msgspec.to_builtins(sent.values))

    def publish(self, name: str, arrays: Sequence[Any]) -> None:
        """Tell the followers of a call that comes next."""
        data: bytes | zmq.Frame = call_bytes(self._number, name, arrays)
        self._number += 1
        if len(self._identities) > 1:
            # All connections share the memory.
            data = zmq.Frame(data, copy=False)
        lost = None
        with self._lock:
            for identity in self._identities:
                try:
                    self._socket.send(identity, zmq.SNDMORE)
                    self._socket.send(data, copy=False)
                except zmq.ZMQError:
                    lost = identity
        if lost is not None:
            self._lost(lost)

    def explain(self) -> None:
        """A program has failed, perhaps because another process has died: give the listener time to see that.

        It ends this process then, and says which it was.
        """
        time.sleep(2 * self._timing.beat + 1.0)

    def close(self, reason: str | None = None) -> None:
        """See `Group.close`."""
        if self._is_closed:
            return
        self._is_closing = True
        self._send_all(End(reason))
        if reason is None:
            with self._changed:
                self._changed.wait_for(lambda: not self._peers, _GRACE)
        self._is_closed = True
        self._listener.join()
        with self._lock:
            self._socket.close()
        self._context.term()

    def _wait(self, until: Any, timeout: float | None) -> bool:
        """Wait for something that the listener brings about. Raises `EngineError` when a follower is lost meanwhile."""
        with self._changed:
            self._is_awaited = True
            self._changed.wait_for(lambda: self._failure is not None or until(), timeout)
            self._is_awaited = False
        if self._failure is not None:
            raise EngineError(self._failure)
        return bool(until())

    def _send_all(self, message: FromLeader) -> None:
        data = encode(message)
        for identity in list(self._peers):
            self._send(identity, data)

    def _send(self, identity: bytes, data: bytes) -> bool:
        """Whether it could be sent."""
        try:
            with self._lock:
                self._socket.send(identity, zmq.SNDMORE)
                self._socket.send(data)
        except zmq.ZMQError:
            return False
        return True

    def _listen(self) -> None:
        next_beat = 0.0
        beat = encode(Beat())
        while not self._is_closed:
            self._receive()
            now = time.monotonic()
            if now >= next_beat:
                next_beat = now + self._timing.beat
                for peer in list(self._peers.values()):
                    if not self._send(peer.identity, beat):
                        self._lost(peer.identity)
                    elif now - peer.heard > self._timing.silence:
                        self._fail(f"{peer} has sent nothing for {self._timing.silence:g} s")
            time.sleep(_POLL)

    def _receive(self) -> None:
        """Take all that has come."""
        while True:
            try:
                with self._lock:
                    identity, *frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.ZMQError:
                return
            try:
                message = FROM_FOLLOWER.decode(frames[-1] if frames else b"")
            except (msgspec.DecodeError, UnicodeDecodeError):
                logger.warning(
                    "%s:%d received something that is not a message of jaxllm", self.place.address, self.place.port
                )
                continue
            self._take(identity, message)

    def _take(self, identity: bytes, message: Hello | Beat | Report | Ended) -> None:
        peer = self._peers.get(identity)
        if isinstance(message, Hello):
            self._greet(identity, message)
        elif peer is None:
            return
        else:
            peer.heard = time.monotonic()
            if isinstance(message, Ended) and self._is_closing:
                self._forget(identity)
            elif isinstance(message, Ended):
                self._fail(f"{peer}: {message.reason}" if message.reason else f"{peer} has ended")
            elif isinstance(message, Report):
                with self._changed:
                    self._reports.setdefault(message.stage, {})[peer.rank] = message.value
                    self._changed.notify_all()

    def _greet(self, identity: bytes, hello: Hello) -> None:
        place = self.place
        taken = next((peer for peer in self._peers.values() if peer.rank == hello.rank), None)
        if hello.version != __version__:
            refused = Refused(f"it runs jaxllm {hello.version}, and process 0 runs {__version__}")
        elif hello.size != place.size or not 0 < hello.rank < place.size:
            refused = Refused(f"it is process {hello.rank} of {hello.size}, but this engine has {place.size} processes")
        elif taken is not None:
            if taken.identity == identity:
                return
            refused = Refused(f"process {hello.rank} is already connected, from {taken.host}", begun=True)
        else:
            with self._changed:
                self._peers[identity] = _Peer(hello.rank, identity, hello.host)
                self._changed.notify_all()
            logger.info("process %d of %d connected from %s", hello.rank, place.size, hello.host)
            return
        logger.warning("rejected a process from %s: %s", hello.host, refused.reason)
        self._send(identity, encode(refused))

    def _lost(self, identity: bytes) -> None:
        if self._is_closing:
            self._forget(identity)
            return
        if not self._has_begun:
            logger.warning("%s disconnected before all processes were connected", self._peers[identity])
            self._forget(identity)
            return
        self._fail(f"the connection to {self._peers[identity]} was lost: the process or its host has gone down")

    def _forget(self, identity: bytes) -> None:
        with self._changed:
            self._peers.pop(identity, None)
            self._changed.notify_all()

    def _fail(self, reason: str) -> None:
        """The group cannot go on. Where this process waits for the others, it is told; else it ends."""
        with self._changed:
            if self._failure is not None or self._is_closing:
                return
            self._failure = reason
            self._changed.notify_all()
            is_awaited = self._is_awaited
        self._send_all(End(reason))
        if not is_awaited:
            # Time for what was just sent.
            time.sleep(0.2)
            end_process(f"this engine ends: {reason}")
