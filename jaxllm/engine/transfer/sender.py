"""The side that has pages: a thread that answers other engines from the host's memory."""

import logging
import socket
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import zmq

from jaxllm.config.kv_transfer import KVTransferSettings
from jaxllm.engine.transfer.identity import Identity
from jaxllm.engine.transfer.keys import protect, read_secret
from jaxllm.engine.transfer.wire import (
    ANSWER_BYTES,
    MOST_HEADER_BYTES,
    MOST_KEYS,
    Answer,
    Ask,
    Hello,
    Refused,
    Release,
    ToConsumer,
    Welcome,
    encode,
    receive,
    to_producer,
)
from jaxllm.errors import ConfigError
from jaxllm.hosts.own_address import own_address
from jaxllm.kv.tiers.host_pool import Bytes, HostPool
from jaxllm.kv.tiers.leases import Lease, Leases

logger = logging.getLogger(__name__)

MOST_CLIENTS = 1024
"""Engines that are remembered; the one that was silent longest is forgotten first, and must say hello again."""
MOST_WAITING = 4096
"""Questions that wait for copies."""
WAIT_SECONDS = 20.0
"""How long a question waits for copies that are not on the host yet."""
ANSWERS_PER_CLIENT = 16
"""Answers that wait in ZeroMQ for one engine. One that asks for more without reading is not answered."""
MOST_TAKEN = 64
"""Messages that are taken before others are answered."""
CLOSE_SECONDS = 2.0


@dataclass(slots=True)
class _Question:
    client: bytes
    ask: Ask
    since: float = field(default_factory=time.monotonic)


class Sender:
    """Serves what `leases` keep in `host`. No engine that asks can make it wait, or hold more than its bounds."""

    def __init__(
        self,
        settings: KVTransferSettings,
        rank: int,
        host: HostPool,
        leases: Leases,
        identity: Identity,
    ) -> None:
        """Raises `ConfigError` for an address that cannot be used."""
        self.num_bytes = self.num_answers = self.num_refused = self.num_foreign = 0
        """So far: bytes of pages, answers, engines that were refused, and messages that were none."""
        self._settings, self._host, self.leases, self._identity = settings, host, leases, identity
        self._clients: OrderedDict[bytes, None] = OrderedDict()  # those that were welcomed
        self._greeting: OrderedDict[bytes, Hello] = OrderedDict()
        self._waiting: list[_Question] = []
        self._context: zmq.Context[Any] = zmq.Context()
        self._wire = self._context.socket(zmq.ROUTER)
        self._woken, self._wake = socket.socketpair()
        self._woken.setblocking(False)
        self._wake.setblocking(False)
        self._is_closing = False
        try:
            self._bind(rank)
        except BaseException:
            self._close_sockets()
            raise
        self._thread = threading.Thread(target=self._run, name="kv-transfer-send", daemon=True)
        self._thread.start()

    def _bind(self, rank: int) -> None:
        settings = self._settings
        protect(self._wire, read_secret(settings.secret_file), produces=True, most_bytes=MOST_HEADER_BYTES)
        self._wire.setsockopt(zmq.SNDHWM, ANSWERS_PER_CLIENT)
        self._wire.setsockopt(zmq.ROUTER_MANDATORY, 1)
        port = settings.port + rank if settings.port else 0
        host = "*" if settings.host in ("0.0.0.0", "::", "*") else settings.host
        if port >= 1 << 16:
            raise ConfigError(f"kv_transfer_config: kv_port={settings.port}: the port of engine {rank} would be {port}")
        address = f"tcp://[{host}]:{port or '*'}" if ":" in host else f"tcp://{host}:{port or '*'}"
        try:
            self._wire.bind(address)
        except zmq.ZMQError as error:
            raise ConfigError(
                f"kv_transfer_config: cannot listen at kv_ip={settings.host}, kv_port={port}: {error}; choose others"
            ) from None
        bound = self._wire.getsockopt_string(zmq.LAST_ENDPOINT)
        self.address = own_address() if host == "*" else settings.host
        self.port = int(bound.rpartition(":")[2])
        """Where others find it."""

    def wake(self) -> None:
        """Something that questions wait for may have changed. Any thread may call it."""
        with suppress(OSError):
            self._wake.send(b"\0")

    def close(self) -> None:
        """End, for a moment."""
        self._is_closing = True
        self.wake()
        self._thread.join(CLOSE_SECONDS)

    # In the thread

    def _run(self) -> None:
        try:
            self._serve()
        except Exception:
            # The engine goes on without; what it keeps for others expires.
            logger.exception("KV transfer: pages are not sent any more")
        finally:
            self._close_sockets()

    def _close_sockets(self) -> None:
        self._wire.close(0)
        self._context.destroy(0)
        self._woken.close()
        self._wake.close()

    def _serve(self) -> None:
        poller = zmq.Poller()
        poller.register(self._woken, zmq.POLLIN)
        poller.register(self._wire, zmq.POLLIN)
        while not self._is_closing:
            ready = dict(poller.poll(1000))
            with suppress(BlockingIOError):
                self._woken.recv(4096)
            try:
                self._work(is_there=self._wire in ready)
            except zmq.ZMQError:
                raise
            except Exception:
                # It may have been anybody's message; who has sent it asks in vain.
                logger.exception("KV transfer: answering failed")
                self.num_foreign += 1
                self._waiting.clear()

    def _work(self, *, is_there: bool) -> None:
        """Take messages, and answer what can be answered now."""
        for _ in range(MOST_TAKEN if is_there else 0):
            frames = receive(self._wire, 2)
            if frames is None:
                break
            self._take(frames)
        self._greet_waiting()
        self._answer_waiting()

    def _take(self, frames: list[zmq.Frame]) -> None:
        if len(frames) != 2:
            self.num_foreign += 1
            return
        client = frames[0].bytes
        try:
            message = to_producer.decode(frames[1].buffer)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.num_foreign += 1
            return
        if isinstance(message, Hello):
            self._greeting[client] = message
            while len(self._greeting) > MOST_CLIENTS:
                self._greeting.popitem(last=False)
        elif isinstance(message, Release):
            # Names cannot be guessed; who was refused has no use for what is kept.
            self.leases.release(message.name)
        elif client not in self._clients:
            self._send(client, Refused("say hello first"))
        elif len(message.keys) > MOST_KEYS or len(self._waiting) >= MOST_WAITING:
            self.num_foreign += 1
        else:
            self._clients.move_to_end(client)
            self._waiting.append(_Question(client, message))

    def _greet_waiting(self) -> None:
        """Answer those that have said hello, once it is known what pages there are."""
        known, stopped = self._identity.known, self._identity.problem
        while self._greeting and (known is not None or stopped):
            client, hello = self._greeting.popitem(last=False)
            problem = stopped if known is None else known.problem(hello)
            if problem or known is None:
                self.num_refused += 1
                logger.warning("KV transfer: an engine is refused: %s", problem)
                self._send(client, Refused(problem or ""))
                continue
            self._clients[client] = None
            while len(self._clients) > MOST_CLIENTS:
                self._clients.popitem(last=False)
            self._send(client, Welcome(self._settings.engine_id, known.form))

    def _answer_waiting(self) -> None:
        now, left = time.monotonic(), []
        for question in self._waiting:
            lease = self.leases.begin_serving(question.ask.name)
            if lease is None:
                self._send(question.client, Answer(question.ask.number, [None] * len(question.ask.keys)))
                continue
            try:
                if lease.is_complete or now > question.since + WAIT_SECONDS:
                    self._answer(question, lease if lease.is_complete else None)
                else:
                    left.append(question)
            finally:
                self.leases.end_serving(lease)
        self._waiting = left

    def _answer(self, question: _Question, lease: Lease | None) -> None:
        checksums: list[int | None] = []
        pages: list[Bytes] = []
        total = 0
        for digest, part in question.ask.keys:
            copy = None if lease is None else lease.copies.get((digest, part))
            if copy is None or (pages and total + copy.size > ANSWER_BYTES):
                checksums.append(None)
                continue
            data = np.empty(copy.size, np.uint8)
            if not self._host.read(copy, data):
                checksums.append(None)
                continue
            checksums.append(copy.checksum)
            pages.append(data)
            total += copy.size
        if self._send(question.client, Answer(question.ask.number, checksums), pages):
            self.num_answers += 1
            self.num_bytes += total

    def _send(self, client: bytes, message: ToConsumer, pages: list[Bytes] | None = None) -> bool:
        """Whether a message is on its way. One that is gone, or reads too slowly, does not get it."""
        try:
            self._wire.send_multipart([client, encode(message), *(pages or ())], zmq.NOBLOCK, copy=False)
        except zmq.ZMQError as error:
            if error.errno not in (zmq.EAGAIN, zmq.EHOSTUNREACH):
                raise
            self._clients.pop(client, None)
            return False
        return True
