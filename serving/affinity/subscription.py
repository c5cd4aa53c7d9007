"""Reads the events of an engine: live ones, those that were missed, and everything again after a restart."""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

import msgspec
import zmq
import zmq.asyncio
from zmq.utils.monitor import parse_monitor_message

from jaxllm.serving.affinity.cached_blocks import CachedBlocks
from jaxllm.serving.affinity.events import read_batch

logger = logging.getLogger(__name__)

REPLAY_SECONDS = 5.0
"""How long each batch of a replay may take."""
RETRY_SECONDS = 1.0
"""Between two attempts to reach an engine."""
_MOST_WAITING = 10_000
"""Live batches that wait here; what comes beyond them is replayed."""
_END = (-1).to_bytes(8, "big", signed=True)


class Source(Protocol):
    """Where an engine publishes: `KVEventSource`, or what `/kv_event_sources` says."""

    @property
    def endpoint(self) -> str:
        """Of the live batches."""
        ...

    @property
    def replay_endpoint(self) -> str | None:
        """Where batches can be read again, if there is such a place."""
        ...

    @property
    def topic(self) -> str:
        """Begins every live message."""
        ...


class UnusableSourceError(Exception):
    """The engine's events cannot be followed; says why."""


def reachable(endpoint: str, host: str | None) -> str:
    """The address to connect to, of one that an engine has bound on `host`; None: nobody knows which that is.

    Raises `UnusableSourceError`.
    """
    if endpoint.startswith("inproc://"):
        raise UnusableSourceError(f"{endpoint} is an address inside another process")
    for everywhere in ("://*:", "://[::]:", "://0.0.0.0:"):
        if everywhere in endpoint:
            if host is None:
                raise UnusableSourceError(f"{endpoint}: the engine's host is unknown")
            shown = f"[{host}]" if ":" in host else host
            return endpoint.replace(everywhere, f"://{shown}:")
    return endpoint


class Subscription:
    """Keeps `cached` as the engine's events tell, until `run` is cancelled.

    Batches are numbered from 0 on: a gap is closed by a replay, and where that has not kept enough, everything is
    forgotten first, because blocks may have been evicted meanwhile. A connection that ends means that the engine has:
    the next one begins with an empty cache. While nobody answers, `cached.is_live` is False.
    """

    def __init__(self, source: Source, host: str | None, cached: CachedBlocks) -> None:
        """`host` stands for `*` in the source's addresses."""
        self._source, self._host = source, host
        self._cached = cached
        self._last = -1
        self.num_batches = 0
        """Batches that were applied."""
        self.num_gaps = 0
        """Times that batches were missed."""

    async def run(self) -> None:
        """Follow the engine. Returns only where it cannot be, and logs why."""
        told = ""
        while True:
            try:
                await self._follow()
            except UnusableSourceError as error:
                logger.warning("prefixes are guessed: %s", error)
                return
            except (zmq.ZMQError, TimeoutError, msgspec.DecodeError, OverflowError) as error:
                problem = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
                if problem != told:
                    logger.info("prefixes are guessed until events of %s arrive: %s", self._source.endpoint, problem)
                told = problem
            finally:
                self._cached.is_live = False
                self._cached.clear()
            await asyncio.sleep(RETRY_SECONDS)

    async def _follow(self) -> None:
        """Until the connection ends, or its engine begins again."""
        self._last = -1
        with _opened(zmq.SUB, reachable(self._source.endpoint, self._host)) as live:
            events = zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
            monitor = live.get_monitor_socket(events)
            live.subscribe(self._source.topic.encode())
            live.connect(reachable(self._source.endpoint, self._host))
            try:
                if await self._connection_event(monitor) != zmq.EVENT_HANDSHAKE_SUCCEEDED:
                    return
                await self._replay()
                self._cached.is_live = True
                await self._read(live, monitor)
            finally:
                live.disable_monitor()
                monitor.close()

    @staticmethod
    async def _connection_event(monitor: "zmq.asyncio.Socket") -> int:
        return int(parse_monitor_message(await monitor.recv_multipart())["event"])

    async def _read(self, live: "zmq.asyncio.Socket", monitor: "zmq.asyncio.Socket") -> None:
        gone = asyncio.ensure_future(self._connection_event(monitor))
        try:
            while True:
                message = asyncio.ensure_future(live.recv_multipart())
                try:
                    await asyncio.wait((message, gone), return_when=asyncio.FIRST_COMPLETED)
                    if not message.done() or not await self._take(message.result()):
                        return
                finally:
                    message.cancel()
        finally:
            gone.cancel()

    async def _take(self, frames: list[bytes]) -> bool:
        """Take a live batch. False: it is another engine's than the last."""
        if len(frames) != 3 or len(frames[1]) != 8:
            raise zmq.ZMQError(msg="a message has not three frames, as batches of events have")
        number = int.from_bytes(frames[1], "big")
        if number <= self._last:
            # What was replayed comes again; only another engine counts from 0 on.
            return number > 0 or self._last == 0
        if number > self._last + 1:
            self.num_gaps += 1
            await self._replay()
        if number > self._last + 1:
            self._cached.clear()
        if number > self._last:
            self._apply(number, frames[2])
        return True

    def _apply(self, number: int, payload: bytes) -> None:
        self._cached.apply(read_batch(payload))
        self._last = number
        self.num_batches += 1

    async def _replay(self) -> None:
        """Read what came after the last batch, as far as the engine has kept it."""
        if self._source.replay_endpoint is None:
            return
        address = reachable(self._source.replay_endpoint, self._host)
        with _opened(zmq.DEALER, address) as dealer:
            dealer.connect(address)
            await dealer.send_multipart((b"", (self._last + 1).to_bytes(8, "big")))
            while True:
                async with asyncio.timeout(REPLAY_SECONDS):
                    frames = await dealer.recv_multipart()
                # An empty frame, the topic, the number and the batch; vLLM's end has no topic.
                number, payload = frames[-2], frames[-1]
                if number == _END:
                    return
                found = int.from_bytes(number, "big")
                if found > self._last + 1 and self._last >= 0:
                    self._cached.clear()
                if found > self._last:
                    self._apply(found, payload)


@contextmanager
def _opened(kind: int, address: str) -> Iterator["zmq.asyncio.Socket"]:
    """A socket for this address, not yet connected."""
    found = zmq.asyncio.Context.instance().socket(kind)
    try:
        found.set_hwm(_MOST_WAITING)
        found.setsockopt(zmq.LINGER, 0)
        if "[" in address:
            found.setsockopt(zmq.IPV6, 1)
        yield found
    finally:
        found.close()
