"""Any process of an engine but the first: it calls the programs that the first one calls, in the same order."""

import contextlib
import logging
import platform
import queue
import threading
import time
from collections.abc import Iterator
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from jaxllm.errors import ConfigError, EngineError
from jaxllm.hosts.group import Group, Timing, end_process
from jaxllm.hosts.messages import (
    FROM_LEADER,
    Beat,
    Call,
    End,
    Ended,
    FromFollower,
    FromLeader,
    Gathered,
    Hello,
    Refused,
    Report,
    Welcome,
    encode,
)
from jaxllm.hosts.placement import Placement
from jaxllm.hosts.sockets import connect, follower_socket
from jaxllm.version import __version__

logger = logging.getLogger(__name__)

_LATE = 15.0
"""Seconds for which a process tries again whose place is taken: the one before it may not be noticed as gone yet."""
_POLL_MS = 50
_FAILED_HANDSHAKE = zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
_EVENTS = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | _FAILED_HANDSHAKE | zmq.EVENT_HANDSHAKE_FAILED_AUTH


class FollowerGroup(Group):
    """`join` first. A thread of its own has the socket."""

    def __init__(
        self,
        place: Placement,
        secret: str | None,
        timing: Timing = Timing(),  # noqa: B008 (frozen)
    ) -> None:
        super().__init__(place)
        self._timing = timing
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = follower_socket(self._context, place, secret)
        self._monitor = self._socket.get_monitor_socket(_EVENTS)
        connect(self._socket, place)
        self._received: queue.SimpleQueue[FromLeader | Exception] = queue.SimpleQueue()
        self._outgoing: queue.SimpleQueue[FromFollower] = queue.SimpleQueue()
        self._is_member = False
        self._is_closed = self._is_ending = self._has_greeted = False
        self._heard = time.monotonic()
        self._listener = threading.Thread(target=self._listen, name="leader", daemon=True)
        self._listener.start()

    @property
    def _leader(self) -> str:
        return f"the first process, at {self.place.address}:{self.place.port},"

    def join(self, timeout: float) -> None:
        """Wait for the first process, and until all others are there.

        Raises:
            ConfigError: it rejects this one, or has another secret.
            EngineError: it has not answered, or not all have come, within `timeout` seconds.
        """
        began = time.monotonic()
        while True:
            left = began + timeout - time.monotonic()
            try:
                answer = self._next(max(left, 0.0))
            except queue.Empty:
                raise EngineError(
                    f"{self._leader} did not start together with process {self.place.rank} of {self.place.size} "
                    f"within {timeout:g} s: it is not running, or other processes are missing"
                ) from None
            if isinstance(answer, Welcome):
                return
            if isinstance(answer, End):
                raise EngineError(f"{self._leader} ended: {answer.reason or 'it was asked to'}")
            assert isinstance(answer, Refused)
            if not answer.begun or time.monotonic() - began > min(_LATE, timeout):
                raise ConfigError(f"{self._leader} rejects this one: {answer.reason}")
            time.sleep(0.5)
            self._say_hello()

    def gather(self, stage: str, value: Any) -> list[Any]:
        """See `Group.gather`."""
        self._outgoing.put(Report(stage, value))
        answer = self._next(None)
        if isinstance(answer, End):
            raise EngineError(f"{self._leader} ended: {answer.reason or 'it was asked to'}")
        if not isinstance(answer, Gathered) or answer.stage != stage:
            raise EngineError(f"at stage {stage!r} {self._leader} sent an unexpected message: {type(answer).__name__}")
        return answer.values

    def calls(self) -> Iterator[Call]:
        """The calls of the first process, until it ends. Raises `EngineError` when that is a failure."""
        expected = 0
        while True:
            message = self._next(None)
            if isinstance(message, End):
                if message.reason is not None:
                    raise EngineError(f"{self._leader} ended: {message.reason}")
                return
            if not isinstance(message, Call) or message.number != expected:
                found = message.number if isinstance(message, Call) else type(message).__name__
                raise EngineError(f"call {expected} from {self._leader} was lost: received {found} instead")
            expected += 1
            yield message

    def close(self, reason: str | None = None) -> None:
        """See `Group.close`."""
        if self._is_closed:
            return
        self._outgoing.put(Ended(reason))
        self._is_closed = True
        self._listener.join()
        self._socket.disable_monitor()
        self._monitor.close()
        self._socket.close(linger=None if self._is_member else 0)
        self._context.term()

    def _next(self, timeout: float | None) -> FromLeader:
        found = self._received.get(timeout=timeout)
        if isinstance(found, Exception):
            raise found
        return found

    def _say_hello(self) -> None:
        self._has_greeted = True
        self._outgoing.put(Hello(self.place.rank, self.place.size, platform.node(), __version__))

    def _listen(self) -> None:
        poller = zmq.Poller()
        poller.register(self._socket, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)
        beat, next_beat = encode(Beat()), 0.0
        while not self._is_closed:
            ready = dict(poller.poll(_POLL_MS))
            self._receive(wait_ms=0)
            if ready.get(self._monitor):
                event = int(recv_monitor_message(self._monitor)["event"])
                # What was said before a connection ended comes first.
                self._receive(wait_ms=_POLL_MS)
                self._take_event(event)
            self._send_waiting()
            now = time.monotonic()
            if self._has_greeted and now >= next_beat:
                next_beat = now + self._timing.beat
                self._send(beat)
                if self._is_member and now - self._heard > self._timing.silence:
                    self._lost(f"{self._leader} has sent nothing for {self._timing.silence:g} s")
        self._send_waiting()

    def _receive(self, wait_ms: int) -> None:
        """Take all that has come, or comes within `wait_ms`."""
        while self._socket.poll(wait_ms):
            self._take(FROM_LEADER.decode(self._socket.recv()))

    def _send_waiting(self) -> None:
        while True:
            try:
                self._send(encode(self._outgoing.get_nowait()))
            except queue.Empty:
                return

    def _send(self, data: bytes) -> None:
        # Where nobody is connected there is nobody to tell, and waiting for it would be for ever.
        with contextlib.suppress(zmq.Again):
            self._socket.send(data, zmq.NOBLOCK)

    def _take(self, message: FromLeader) -> None:
        self._heard = time.monotonic()
        if isinstance(message, Beat):
            return
        if isinstance(message, Welcome):
            self._is_member = True
        if isinstance(message, End):
            self._is_ending = True
            self._end(message)
        self._received.put(message)

    def _take_event(self, event: int) -> None:
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            if not self._is_member:
                self._say_hello()
        elif event == zmq.EVENT_DISCONNECTED:
            if self._is_member:
                self._lost(f"the connection to {self._leader} was lost: its process or its host has gone down")
        elif not self._is_member:
            self._received.put(
                ConfigError(f"{self._leader} has a different secret (JAXLLM_DISTRIBUTED_SECRET), or is not jaxllm")
            )

    def _end(self, end: End) -> None:
        """The first process ends: the thread that follows is told, and given a little time."""
        reason = None if end.reason is None else f"this engine ends: {end.reason}"

        def end_now() -> None:
            if self._is_closed:
                return
            end_process(reason or "the first process has ended", 0 if reason is None else 1)

        timer = threading.Timer(10.0 if reason is None else 1.0, end_now)
        timer.daemon = True
        timer.start()

    def _lost(self, reason: str) -> None:
        if not self._is_closed and not self._is_ending:
            end_process(f"this process ends: {reason}")
