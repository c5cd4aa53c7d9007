"""One engine that pages are fetched from: the connection, what was asked and what comes."""

import logging
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec
import numpy as np
import zmq
from zmq.utils.monitor import recv_monitor_message

from jaxllm.engine.transfer.fingerprint import Fingerprint, converted, form_bytes, form_problem
from jaxllm.engine.transfer.keys import protect
from jaxllm.engine.transfer.wire import (
    ANSWER_BYTES,
    MOST_HEADER_BYTES,
    MOST_KEYS,
    Answer,
    Ask,
    PageForm,
    Refused,
    Release,
    Welcome,
    encode,
    receive,
    to_consumer,
)
from jaxllm.kv.tiers.fetches import Failure, Fetch, Source
from jaxllm.kv.tiers.host_pool import HostCopy, HostPool, checksum

logger = logging.getLogger(__name__)

QUESTIONS, QUESTIONS_OF_ALL = 2, 6
"""Questions of one fetch under way at a time, and of all from one engine: while one answer is taken, the next is on its
way. Together with those that ZeroMQ has not told of yet, answers are fewer than `ANSWERS_PER_CLIENT`."""
_GONE = zmq.EVENT_DISCONNECTED | zmq.EVENT_CONNECT_RETRIED | zmq.EVENT_CLOSED
_UNWELCOME = (
    zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)


@dataclass(eq=False, slots=True)
class Job:
    """A fetch, what of it was not asked for yet, and questions without answers."""

    fetch: Fetch
    left: deque[HostCopy] = field(default_factory=deque)
    num_asked: int = 0
    failure: Failure | None = None

    def __post_init__(self) -> None:
        self.left.extend(self.fetch.copies)


@dataclass(eq=False, slots=True)
class _Question:
    job: Job
    copies: list[HostCopy]
    size: int


class Peer:
    """The connection to an engine that has pages. One thread calls everything, and none of it waits."""

    def __init__(
        self, context: "zmq.Context[Any]", source: Source, secret: str | None, host: HostPool, states: int
    ) -> None:
        """Raises `ZMQError` for an address that is none."""
        self.jobs: list[Job] = []
        self.failure: Failure | None = None
        """Why nothing can be asked here any more, if that is so."""
        self.is_unwelcome = False
        """Whether it has said so itself: then it still hears what need not be kept."""
        self.bytes_in_flight = 0
        self.since = self.used = time.monotonic()
        """When it was connected, and used last."""
        self._host, self._states = host, states
        self._form: PageForm | None = None
        self._engine_id = ""
        self._own: PageForm | None = None
        self._questions: dict[int, _Question] = {}
        self._number = 0
        self._ended: list[Job] = []
        self._releases: list[str] = []
        self._wire = context.socket(zmq.DEALER)
        try:
            protect(self._wire, secret, produces=False, most_bytes=MOST_HEADER_BYTES)
            self._wire.setsockopt(zmq.SNDHWM, 0)
            self._monitor = self._wire.get_monitor_socket(_GONE | _UNWELCOME)
        except BaseException:
            self._wire.close(0)
            raise
        self._source = source

    @property
    def is_busy(self) -> bool:
        """Whether anything is waited for."""
        return bool(self.jobs or self._releases)

    @property
    def awaits_welcome(self) -> bool:
        """Whether it has been greeted, and has not said anything yet."""
        return self._own is not None and self._form is None and self.failure is None

    def register(self, poller: zmq.Poller) -> None:
        """Have a poller wake up when something comes."""
        poller.register(self._wire, zmq.POLLIN)
        poller.register(self._monitor, zmq.POLLIN)

    def greet(self, known: Fingerprint) -> None:
        """Connect and say what pages are wanted, the first time."""
        if self._own is not None or self.failure is not None:
            return
        self._own, self.since = known.form, time.monotonic()
        host = self._source.host
        # A page of the other side is at most as large as its heads are repeated for more devices than anybody has.
        largest = max(form_bytes(known.form) * 64, known.form.state_bytes) + MOST_HEADER_BYTES
        self._wire.setsockopt(zmq.MAXMSGSIZE, largest)
        try:
            name = f"[{host}]" if ":" in host else host
            self._wire.connect(f"tcp://{name}:{self._source.port}")
        except zmq.ZMQError as error:
            logger.warning("KV transfer: cannot connect to %s:%d: %s", host, self._source.port, error)
            self.failure = "unreachable"
            return
        self._wire.send(encode(known.hello))

    def begin(self, job: Job) -> None:
        """Fetch something from here."""
        self.used = time.monotonic()
        self.jobs.append(job)

    def drop_jobs(self) -> list[Job]:
        """All jobs, which are none of its any more."""
        jobs, self.jobs = self.jobs, []
        return jobs

    def release(self, name: str) -> None:
        """Say that what is kept under a name is not wanted any more, once there is a connection."""
        self.used = time.monotonic()
        self._releases.append(name)

    def ask(self, room: int) -> None:
        """Ask for more, at most `room` bytes."""
        self._send_releases()
        if self._form is None:
            return
        for job in self.jobs:
            if job.fetch.source.engine_id not in (None, self._engine_id):
                # Another engine is there now.
                job.failure = "gone"
                job.left.clear()
            while job.left and job.num_asked < QUESTIONS and not job.fetch.is_over:
                if len(self._questions) >= QUESTIONS_OF_ALL:
                    break
                copies, size = self._next(job)
                if size > room and self.bytes_in_flight:
                    return
                room -= size
                self._number += 1
                self._questions[self._number] = _Question(job, copies, size)
                self.bytes_in_flight += size
                job.num_asked += 1
                keys = [(copy.digest, copy.part) for copy in copies]
                self._wire.send(encode(Ask(self._number, job.fetch.source.name, keys)))

    def _send_releases(self) -> None:
        if self._own is not None and self._releases:
            for name in self._releases:
                self._wire.send(encode(Release(name)))
            self._releases = []

    def _next(self, job: Job) -> tuple[list[HostCopy], int]:
        copies, size = [job.left.popleft()], 0
        size = self._size(copies[0])
        while job.left and len(copies) < MOST_KEYS and size + self._size(job.left[0]) <= ANSWER_BYTES:
            size += self._size(job.left[0])
            copies.append(job.left.popleft())
        return copies, size

    def _size(self, copy: HostCopy) -> int:
        """Bytes of a copy as the other side has it."""
        assert self._form is not None
        return self._form.state_bytes if copy.part == self._states else form_bytes(self._form)

    def take(self) -> Iterator[tuple[Job, HostCopy, int | None]]:
        """Take what has come: copies, each with its checksum, or None where it has not come."""
        self._look_at_connection()
        while self.failure is None:
            frames = receive(self._wire, MOST_KEYS + 1)
            if frames is None:
                break
            try:
                message = to_consumer.decode(frames[0].buffer)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                self._give_up("damaged", "it does not speak this protocol")
                break
            if isinstance(message, Welcome):
                self._welcome(message)
            elif isinstance(message, Refused):
                self.is_unwelcome = True
                self._give_up("refused", message.reason[:1000])
            else:
                yield from self._answer(message, frames[1:])
        self._end_jobs()

    def _welcome(self, message: Welcome) -> None:
        assert self._own is not None
        problem = form_problem(self._own, message.form)
        if problem is not None:
            self.is_unwelcome = True
            self._give_up("refused", problem)
        else:
            self._form, self._engine_id = message.form, message.engine_id

    def _answer(self, message: Answer, frames: list[zmq.Frame]) -> Iterator[tuple[Job, HostCopy, int | None]]:
        question = self._questions.pop(message.number, None)
        if question is None:
            return
        self.used = time.monotonic()
        self.bytes_in_flight -= question.size
        job = question.job
        job.num_asked -= 1
        checksums = message.checksums
        has_all = len(checksums) == len(question.copies) and len(frames) == sum(each is not None for each in checksums)
        if not has_all:
            self._give_up("damaged", "an answer has other pages than were asked for")
            return
        pages = iter(frames)
        for copy, told in zip(question.copies, checksums, strict=True):
            found = None
            if told is not None:
                frame = next(pages)
                found = None if job.fetch.is_over else self._fill(copy, frame, told)
                if found is None:
                    job.failure = job.failure or "damaged"
            else:
                job.failure = job.failure or "gone"
            yield job, copy, found

    def _fill(self, copy: HostCopy, frame: zmq.Frame, told: int) -> int | None:
        """Write a page to the host. Its checksum there; None if it is not what was sent."""
        assert self._form is not None
        assert self._own is not None
        data = np.frombuffer(frame.buffer, np.uint8)
        if len(data) != self._size(copy):
            return None
        if copy.part == self._states or self._form == self._own:
            found = self._host.fill(copy, data)
            return found if found == told else None
        if checksum(copy, data) != told:
            return None
        return self._host.fill(copy, converted(data, self._form, self._own))

    def _look_at_connection(self) -> None:
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor)["event"]
            if event & _UNWELCOME:
                self._give_up("refused", "it has another secret_file, or none")
            elif self.failure is None:
                self.failure = "unreachable"

    def _give_up(self, failure: Failure, reason: str) -> None:
        if self.failure is None:
            logger.warning(
                "KV transfer: no pages come from %s:%d: %s; prompts are computed here",
                self._source.host, self._source.port, reason,
            )  # fmt: skip
        self.failure = self.failure or failure

    def _end_jobs(self) -> None:
        for job in list(self.jobs):
            if job.fetch.is_over or not (job.left or job.num_asked):
                self.jobs.remove(job)
                self._ended.append(job)

    def take_ended(self) -> list[Job]:
        """Jobs that are over since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def close(self) -> None:
        """Close the connection."""
        self._wire.disable_monitor()
        self._monitor.close(0)
        self._wire.close(0)
