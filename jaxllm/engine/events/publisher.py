"""Publishes events of the prefix cache: a thread with sockets for all who listen, and for those who come late."""

import logging
import secrets
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress

import zmq

from jaxllm.config.engine_info import KVEventSource
from jaxllm.config.kv_events import KVEventsSettings
from jaxllm.engine.events.endpoints import address_of, binds, endpoint_of, opened
from jaxllm.engine.events.mirror import Mirror
from jaxllm.engine.events.wire import CacheGroup, WireFormat
from jaxllm.kv.events import Event, KVEvents

logger = logging.getLogger(__name__)

HEARTBEAT_SECONDS = 1.0
"""Between two batches, where there is a socket for snapshots: who waits for it learns that nothing was lost."""
CLOSING_SECONDS = 1.0
_END = (-1).to_bytes(8, "big", signed=True)
_UNAVAILABLE = -2
_SNAPSHOT = b"snapshot"


class Publisher:
    """Takes the events of one engine, after every step, and sends them from a thread of its own.

    No subscriber can make it wait: ZeroMQ drops batches for one that is slow. Where the thread is late, the oldest
    batches are dropped and counted. Batches are numbered before that, so that whoever misses one sees it.
    """

    def __init__(
        self, settings: KVEventsSettings, rank: int, events: KVEvents, block_size: int, groups: Sequence[CacheGroup]
    ) -> None:
        """For `groups` see `WireFormat`. Raises `ConfigError` for addresses that cannot be used."""
        self.num_dropped = 0
        """Batches that were never sent."""
        self._settings, self._rank, self._events = settings, rank, events
        self._wire = WireFormat(block_size, groups, settings.event_format)
        self._topic = settings.topic.encode()
        self._queue: deque[tuple[int, float, list[Event]]] = deque()
        self._replayable: deque[tuple[int, bytes]] = deque(maxlen=settings.buffer_steps)
        self._lock = threading.RLock()
        self._next = 0
        self._id = secrets.token_bytes(16)
        self._mirror = None if settings.snapshot_endpoint is None else Mirror()
        self._last, self._lost = -1, 0  # the number of the last batch in the mirror
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._closing = False
        self._sockets: list[zmq.Socket[bytes]] = []
        try:
            self._open()
        except BaseException:
            self._close_sockets(0)
            raise
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self._thread.start()

    def _open(self) -> None:
        settings, rank = self._settings, self._rank
        endpoint = endpoint_of(settings.endpoint, rank)
        self._pub = opened(zmq.PUB, endpoint, settings.hwm, bind=binds(endpoint))
        self._sockets.append(self._pub)
        self._routers: dict[str, zmq.Socket[bytes]] = {}
        addresses: dict[str, str] = {}
        for name, wanted in (("replay", settings.replay_endpoint), ("snapshot", settings.snapshot_endpoint)):
            if wanted is not None:
                own = endpoint_of(wanted, rank)
                # A whole replay may wait for one reader; what comes on top of that is dropped.
                most = settings.buffer_steps + 1 if name == "replay" else 8
                self._routers[name] = opened(zmq.ROUTER, own, most, bind=True)
                self._sockets.append(self._routers[name])
                addresses[name] = address_of(self._routers[name], own)
        self.source = KVEventSource(
            data_parallel_rank=rank,
            endpoint=address_of(self._pub, endpoint),
            replay_endpoint=addresses.get("replay"),
            snapshot_endpoint=addresses.get("snapshot"),
            topic=settings.topic,
            buffer_steps=settings.buffer_steps,
            hwm=settings.hwm,
            max_queue_size=settings.max_queue_size,
        )
        """Where to find it."""

    def flush(self) -> None:
        """Publish what was noted since the last call, if anything, as one batch. Never waits for anybody."""
        if self._events.pending:
            self._put(self._events.take())

    def _put(self, events: list[Event]) -> None:
        with self._lock:
            if len(self._queue) >= self._settings.max_queue_size:
                self._queue.popleft()
                self.num_dropped += 1
            self._queue.append((self._next, time.time(), events))
            self._next += 1
        self._notify()

    def _notify(self) -> None:
        # Where there is no room for another byte it has been told already; where the socket is closed nobody listens.
        with suppress(OSError):
            self._wake.send(b"\0")

    def close(self) -> None:
        """Send what waits, for a moment at most, and end."""
        self._closing = True
        self._notify()
        self._thread.join(CLOSING_SECONDS)

    # In the thread

    def _run(self) -> None:
        try:
            self._serve()
        except Exception:
            # The engine goes on without.
            logger.exception("events of the KV cache are not published any more")
        finally:
            self._close_sockets(int(1000 * CLOSING_SECONDS))

    def _close_sockets(self, linger: int) -> None:
        """What waits to be sent is sent for so many more milliseconds."""
        for each in self._sockets:
            each.close(linger)
        self._woken.close()
        self._wake.close()

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._woken, zmq.POLLIN)
        for router in self._routers.values():
            poller.register(router, zmq.POLLIN)
        wait = None if self._mirror is None else int(1000 * HEARTBEAT_SECONDS)
        while not self._closing:
            ready = dict(poller.poll(wait))
            with suppress(BlockingIOError):
                self._woken.recv(4096)
            if not ready and not self._queue:
                self._put([])
            self._drain()
            for name, router in self._routers.items():
                if router in ready:
                    self._answer(name, router)
        self._drain()

    def _drain(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    return
                number, noted, found = self._queue.popleft()
                lost, self._lost = self._lost, self.num_dropped
            events = [self._wire.translated(event) for event in found]
            if self._mirror is not None:
                self._mirror.is_whole &= lost == self._lost
                self._mirror.apply(events)
                self._last = number
            payload = self._wire.encoded(noted, events, self._rank, None if self._mirror is None else self._id)
            self._pub.send_multipart((self._topic, number.to_bytes(8, "big"), payload))
            self._replayable.append((number, payload))

    def _answer(self, name: str, router: "zmq.Socket[bytes]") -> None:
        while True:
            try:
                frames = router.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if len(frames) == 3 and not frames[1]:
                if name == "replay":
                    self._replay(router, frames[0], frames[2])
                elif frames[2] == _SNAPSHOT:
                    router.send_multipart((frames[0], b"", *self._snapshot()))

    def _replay(self, router: "zmq.Socket[bytes]", reader: bytes, first: bytes) -> None:
        """Send the batches from this number on that are still there, and the mark of the end."""
        begin = int.from_bytes(first, "big")
        for number, payload in list(self._replayable):
            if number >= begin:
                router.send_multipart((reader, b"", self._topic, number.to_bytes(8, "big"), payload))
        router.send_multipart((reader, b"", b"", _END, b""))

    def _snapshot(self) -> Iterator[bytes]:
        """The number of the last batch, who publishes, and batches that lead to what the cache held after it."""
        assert self._mirror is not None
        chunks: list[bytes] = []
        room = self._settings.snapshot_max_response_bytes
        fits = self._mirror.is_whole and len(self._mirror) <= self._settings.snapshot_max_blocks
        for part in self._mirror.snapshot() if fits else ():
            chunks.append(self._wire.encoded(time.time(), part, self._rank))
            room -= len(chunks[-1])
            if room < 0:
                break
        is_there = fits and room >= 0
        yield (self._last if is_there else _UNAVAILABLE).to_bytes(8, "big", signed=True)
        yield self._id
        if is_there:
            yield from chunks
