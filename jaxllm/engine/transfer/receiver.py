"""The side that fetches pages: one thread for all engines that they come from."""

import logging
import socket
import threading
import time
from collections import deque
from contextlib import suppress
from typing import Any

import zmq

from jaxllm.config.kv_transfer import KVTransferSettings
from jaxllm.engine.transfer.identity import Identity
from jaxllm.engine.transfer.keys import read_secret
from jaxllm.engine.transfer.peer import Job, Peer
from jaxllm.kv.tiers.fetches import Failure, Fetch, Source
from jaxllm.kv.tiers.host_pool import HostCopy, HostPool

logger = logging.getLogger(__name__)

CLOSE_SECONDS = 2.0
IDLE_SECONDS = 60.0
"""A connection that nobody uses is closed after so long."""
AVOIDED_SECONDS, RETRY_SECONDS = 10.0, 0.5
"""From an engine that did not answer in time, nothing is asked for the first; from one that is gone for the second."""

Came = tuple[Fetch, HostCopy | None, int | None, Failure | None]
"""A copy and its checksum, None where it did not come; or, without a copy, the end of a fetch."""


class Receiver:
    """Fetches into `host` what the engine's thread gives it, and says what has come; `news` is set then."""

    def __init__(
        self,
        settings: KVTransferSettings,
        host: HostPool,
        states: int,
        identity: Identity,
        news: threading.Event,
    ) -> None:
        """Raises `ConfigError` for a secret that cannot be read."""
        self.seconds = 0.0
        """For how long anything was under way, so far."""
        self._settings, self._host, self._states = settings, host, states
        self._identity, self._news, self._secret = identity, news, read_secret(settings.secret_file)
        self._commands: deque[Fetch | Source] = deque()
        self._came: deque[Came] = deque()
        self._context: zmq.Context[Any] = zmq.Context()
        self._peers: dict[tuple[str, int], Peer] = {}
        self._avoided: dict[tuple[str, int], float] = {}
        self._queued: deque[Fetch] = deque()
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._is_closing = False
        self._thread = threading.Thread(target=self._run, name="kv-transfer-fetch", daemon=True)
        self._thread.start()

    def fetch(self, fetch: Fetch) -> None:
        """Begin to fetch; `came` has the copies later, and then the end."""
        self._commands.append(fetch)
        self._notify()

    def release(self, source: Source) -> None:
        """Say that what is kept there is not wanted any more, and fetch no more of it."""
        self._commands.append(source)
        self._notify()

    def came(self) -> list[Came]:
        """What has come since the last call."""
        return [self._came.popleft() for _ in range(len(self._came))]

    def _notify(self) -> None:
        with suppress(OSError):
            self._wake.send(b"\0")

    def close(self) -> None:
        """Fetch no more, and end; a thread that is stuck ends with the process."""
        self._is_closing = True
        self._notify()
        self._thread.join(CLOSE_SECONDS)

    # In the thread

    def _run(self) -> None:
        try:
            while not self._is_closing:
                try:
                    self._turn()
                except Exception:
                    # It may have been anybody's message: all begin again.
                    logger.exception("KV transfer: fetching failed; prompts are computed here")
                    self._drop_all()
        finally:
            for peer in self._peers.values():
                peer.close()
            self._context.destroy(0)
            self._woken.close()
            self._wake.close()

    def _drop_all(self) -> None:
        """End all fetches and connections."""
        for address, peer in self._peers.items():
            self._avoided[address] = time.monotonic() + RETRY_SECONDS
            for job in peer.drop_jobs():
                self._end(job.fetch, "unreachable")
            peer.close()
        self._peers.clear()
        while self._queued:
            self._end(self._queued.popleft(), "unreachable")

    def _turn(self) -> None:
        """Wait for something to do, and do it."""
        poller = zmq.Poller()
        poller.register(self._woken, zmq.POLLIN)
        for peer in self._peers.values():
            peer.register(poller)
        begin = time.monotonic()
        poller.poll(self._patience())
        if any(peer.is_busy for peer in self._peers.values()):
            self.seconds += time.monotonic() - begin
        with suppress(BlockingIOError):
            self._woken.recv(4096)
        while self._commands:
            self._obey(self._commands.popleft())
        self._start_queued()
        for address, peer in list(self._peers.items()):
            self._look_after(address, peer)
        for peer in self._peers.values():
            peer.ask(self._room())

    def _patience(self) -> int:
        """Milliseconds until something is to be looked after in any case."""
        if self._queued or any(peer.is_busy for peer in self._peers.values()):
            return 200
        return 10_000 if self._peers else 60_000

    def _room(self) -> int:
        """Bytes that may still be asked for."""
        return self._settings.max_bytes_in_flight - sum(peer.bytes_in_flight for peer in self._peers.values())

    def _obey(self, command: Fetch | Source) -> None:
        if isinstance(command, Fetch):
            self._queued.append(command)
            return
        peer = self._peers.get((command.host, command.port))
        if peer is None:
            # It was never asked, since its pages were here already or nobody waits any more.
            peer = self._connect(command)
        if peer is not None:
            peer.release(command.name)

    def _start_queued(self) -> None:
        """Begin fetches, in order, while there may be more."""
        active = sum(len(peer.jobs) for peer in self._peers.values())
        while self._queued and active < self._settings.max_fetches:
            fetch = self._queued.popleft()
            if fetch.is_over:
                self._end(fetch, None)
                continue
            peer = self._connect(fetch.source)
            if peer is None:
                self._end(fetch, "unreachable")
                continue
            peer.begin(Job(fetch))
            active += 1

    def _connect(self, source: Source) -> Peer | None:
        """The connection to an engine; None where it is avoided."""
        address = (source.host, source.port)
        if time.monotonic() < self._avoided.get(address, 0.0):
            return None
        self._avoided.pop(address, None)
        peer = self._peers.get(address)
        if peer is None:
            try:
                peer = Peer(self._context, source, self._secret, self._host, self._states)
            except zmq.ZMQError as error:
                logger.warning("KV transfer: cannot connect to %s:%d: %s", source.host, source.port, error)
                return None
            self._peers[address] = peer
        return peer

    def _look_after(self, address: tuple[str, int], peer: Peer) -> None:
        """Take what an engine has sent, and give up one that is gone, refuses us or does not answer."""
        known = self._identity.known
        if known is not None:
            peer.greet(known)
        for job, copy, checksum in peer.take():
            self._came.append((job.fetch, copy, checksum, None))
        for job in peer.take_ended():
            self._end(job.fetch, job.failure)
        now = time.monotonic()
        if peer.awaits_welcome and now > peer.since + self._settings.connect_timeout:
            peer.failure = "unreachable"
            self._avoided[address] = now + AVOIDED_SECONDS
        if peer.failure is not None:
            if peer.failure == "unreachable" and peer.jobs:
                logger.warning("KV transfer: %s:%d does not answer; prompts are computed here", *address)
            for job in peer.drop_jobs():
                self._end(job.fetch, None if job.fetch.is_over else peer.failure)
        is_unused = not peer.is_busy and now > peer.used + (IDLE_SECONDS if peer.failure is None else AVOIDED_SECONDS)
        if is_unused or (peer.failure is not None and not peer.is_unwelcome):
            if peer.failure is not None:
                self._avoided.setdefault(address, now + RETRY_SECONDS)
            peer.close()
            del self._peers[address]

    def _end(self, fetch: Fetch, failure: Failure | None) -> None:
        self._came.append((fetch, None, None, failure))
        self._news.set()
