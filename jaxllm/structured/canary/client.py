"""`Canary`: has grammars tried in a process that may die of them, each once, a few at a time."""

import hashlib
import itertools
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

import msgspec

from jaxllm.errors import QueueFullError, RequestError
from jaxllm.structured.backend import Vocabulary
from jaxllm.structured.canary.link import Link
from jaxllm.structured.canary.messages import Begin, Budget, Cancel, Try, Verdict
from jaxllm.structured.canary.waiting import TurnQueue
from jaxllm.structured.params import StructuredOutputsParams

AT_ONCE: Final = 2
"""Trials at a time."""
MOST_WAITING: Final = 512
"""Trials that wait, of all owners."""
MOST_OF_ONE: Final = 64
"""Trials that wait, of one owner."""
MOST_VERDICTS: Final = 8192
"""Verdicts that are remembered: at most some 5 MiB, if all are refusals."""
MOST_STARTS: Final = 5
"""Times that a trial is begun again when the process dies under it: it dies of no grammar, only its children do."""
GRACE_SECONDS: Final = 10.0
"""A process that says nothing of a trial so long after its time is over hangs, and is killed."""


class Trial:
    """A grammar that is being tried, or waits for that, and who wants to know."""

    def __init__(self, key: bytes, form: bytes, owner: str) -> None:
        self.key, self.form, self.owner = key, form, owner
        self.number = -1
        self.starts = 0
        self.asking: set[Future[Verdict]] = set()
        self.timer: threading.Timer | None = None


class Canary:
    """Answers whether a grammar can be compiled, from memory or by a trial. Thread-safe; never blocks.

    The process is started by `start` or with the first trial, and again whenever it dies: trials that it had then are
    begun again. It ends with this process.
    """

    def __init__(self, backend: str, vocabulary: Vocabulary, budget: Budget) -> None:
        """`budget` is what each grammar may use. Raises `RequestError` where processes cannot fork."""
        if not hasattr(os, "fork"):
            raise RequestError(
                "grammars cannot be tried in a process of their own on this system: structured_outputs_canary=False "
                "compiles them without that",
                "structured_outputs",
            )
        folder, ends = str(vocabulary.folder), vocabulary.end_token_ids
        self._begin = Begin(
            backend=backend, folder=folder, vocab_size=vocabulary.size, end_token_ids=ends, budget=budget
        )
        self._lock = threading.RLock()
        self._link: Link | None = None
        self._closed = False
        self._numbers = itertools.count()
        self._verdicts: OrderedDict[bytes, Verdict] = OrderedDict()
        self._trials: dict[bytes, Trial] = {}
        self._waiting: TurnQueue[Trial] = TurnQueue()
        self._running: dict[int, Trial] = {}

    @property
    def pid(self) -> int | None:
        """Process id, while there is a process."""
        link = self._link
        return None if link is None else link.pid

    def start(self) -> None:
        """Start the process, if it does not run."""
        with self._lock:
            if self._link is None and not self._closed:
                self._link = Link(self._begin, self._take, self._ended)

    def ask(self, form: StructuredOutputsParams, owner: str = "") -> "Future[Verdict]":
        """What becomes of a grammar, now or later. A future that is cancelled ends a trial nobody else waits for.

        Owners take turns. Raises `QueueFullError` when too many trials wait.
        """
        data = msgspec.msgpack.encode(form)
        key = hashlib.blake2b(data, digest_size=32).digest()
        asked: Future[Verdict] = Future()
        with self._lock:
            known = self._verdicts.get(key)
            if known is None:
                trial = self._trials.get(key) or self._queue(Trial(key, data, owner))
                trial.asking.add(asked)
            else:
                self._verdicts.move_to_end(key)
        if known is not None:
            asked.set_result(known)
            return asked
        asked.add_done_callback(lambda done: self._leave(trial, done) if done.cancelled() else None)
        self._go_on()
        return asked

    def _queue(self, trial: Trial) -> Trial:
        if len(self._waiting) >= MOST_WAITING or self._waiting.waiting(trial.owner) >= MOST_OF_ONE:
            raise QueueFullError(f"{len(self._waiting)} new grammars wait to be compiled already: try again later")
        self._trials[trial.key] = trial
        self._waiting.put(trial.owner, trial)
        return trial

    def _go_on(self) -> None:
        """Begin the next trials."""
        with self._lock:
            while not self._closed and len(self._running) < AT_ONCE and (trial := self._waiting.take()) is not None:
                self.start()
                assert self._link is not None
                trial.number = next(self._numbers)
                trial.starts += 1
                self._running[trial.number] = trial
                self._link.send(Try(trial.number, trial.form))
                seconds = self._begin.budget.seconds + GRACE_SECONDS
                trial.timer = threading.Timer(seconds, self._link.kill)
                trial.timer.daemon = True
                trial.timer.start()

    def _leave(self, trial: Trial, asked: "Future[Verdict]") -> None:
        """Somebody does not want to know any more."""
        with self._lock:
            trial.asking.discard(asked)
            if trial.asking or self._trials.get(trial.key) is not trial:
                return
            # Somebody else who asks from now on begins a trial of his own.
            del self._trials[trial.key]
            self._waiting.remove(trial.owner, trial)
            if trial.number in self._running and self._link is not None:
                self._link.send(Cancel(trial.number))

    def _take(self, verdict: Verdict) -> None:
        with self._lock:
            trial = self._running.pop(verdict.number, None)
            if trial is None:
                return
            if trial.timer is not None:
                trial.timer.cancel()
            if verdict.lasting:
                self._verdicts[trial.key] = verdict
                while len(self._verdicts) > MOST_VERDICTS:
                    self._verdicts.popitem(last=False)
        self._answer(trial, lambda asked: asked.set_result(verdict))
        self._go_on()

    def _answer(self, trial: Trial, settle: "Callable[[Future[Verdict]], None]") -> None:
        with self._lock:
            if self._trials.get(trial.key) is trial:
                del self._trials[trial.key]
            asking, trial.asking = trial.asking, set()
        for asked in asking:
            if asked.set_running_or_notify_cancel():
                settle(asked)

    def _ended(self, link: Link) -> None:
        """The process has died: what it was at is begun again in the next one, if there is anybody to know."""
        with self._lock:
            self._link = None
            running, self._running = list(self._running.values()), {}
            given_up = []
            for trial in reversed(running):
                if trial.timer is not None:
                    trial.timer.cancel()
                if trial.starts >= MOST_STARTS or self._closed:
                    given_up.append(trial)
                elif trial.asking:
                    self._waiting.put_back(trial.owner, trial)
        for trial in given_up:
            error = QueueFullError("the process that tries new grammars keeps dying: try again later")
            self._answer(trial, lambda asked, error=error: asked.set_exception(error))  # type: ignore[misc]
        self._go_on()

    def close(self) -> None:
        """End the process; whoever waits gets an error. May be called again."""
        with self._lock:
            self._closed = True
            link, waiting = self._link, []
            while (trial := self._waiting.take()) is not None:
                waiting.append(trial)
        for trial in waiting:
            self._answer(trial, lambda asked: asked.set_exception(QueueFullError("the server is shutting down")))
        if link is not None:
            link.kill()
