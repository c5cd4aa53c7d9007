"""`Canary`: has grammars tried in a process that may die of them, each once, a few at a time."""

import hashlib
import itertools
import os
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Final

import msgspec

from jaxllm.errors import QueueFullError, RequestError
from jaxllm.requests.structured_outputs import StructuredOutputsParams
from jaxllm.structured.backend import Vocabulary
from jaxllm.structured.grammar_sandbox.link import Link
from jaxllm.structured.grammar_sandbox.messages import Begin, Budget, Cancel, Try, Verdict
from jaxllm.structured.grammar_sandbox.waiting import TurnQueue

AT_ONCE: Final = 2
"""Trials at a time."""
MOST_WAITING: Final = 512
"""Trials that wait, of all owners."""
MOST_OF_ONE: Final = 64
"""Trials that wait, of one owner."""
MOST_VERDICTS: Final = 8192
"""Verdicts that are remembered: at most some 5 MiB, if all are refusals."""
MOST_STARTS: Final = 5
"""So often a trial that dies of nothing in its grammar is begun at least, and"""
PATIENCE_SECONDS: Final = 30.0
"""so long at least; who waits is then told to come back later."""
GRACE_SECONDS: Final = 10.0
"""A process that says nothing of a trial so long after its time is over hangs, and is killed."""


class Trial:
    """A grammar that is being tried, or waits for that, and who wants to know."""

    def __init__(self, key: bytes, form: bytes, owner: str) -> None:
        self.key, self.form, self.owner = key, form, owner
        self.number = -1
        self.backoff = Backoff(0.05, 2.0)
        self.asking: set[Future[Verdict]] = set()
        self.timer: threading.Timer | None = None


class Canary:
    """Answers whether a grammar can be compiled, from memory or by a trial. Thread-safe; never blocks.

    The process is started by `start` or with the first trial, and again whenever it dies: trials that it had then are
    begun again, and so are those whose own process somebody kills. It ends with this process.
    """

    def __init__(
        self, backend: str, vocabulary: Vocabulary, budget: Budget, *, patience: float = PATIENCE_SECONDS
    ) -> None:
        """`budget` is what each grammar may use, `patience` the seconds that it is tried again when that fails.

        Raises `RequestError` where processes cannot fork.
        """
        if not hasattr(os, "fork"):
            raise RequestError(
                "this system cannot check grammars in a separate process; set structured_outputs_canary=False to "
                "compile them unchecked",
                "structured_outputs",
            )
        folder, ends = str(vocabulary.folder), vocabulary.end_token_ids
        self._begin = Begin(
            backend=backend, folder=folder, vocab_size=vocabulary.size, end_token_ids=ends, budget=budget
        )
        self._lock = threading.RLock()
        self._link: Link | None = None
        self._closed = False
        self._patience = patience
        self._backoff = Backoff(0.1, 0.5)
        self._pauses = False
        """The process has died, and is not started again for a moment."""
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
        """Start the process, if it does not run. Where the system gives none, that is tried again with each trial."""
        with self._lock, suppress(OSError):
            self._connect()

    def _connect(self) -> Link | None:
        if self._link is None and not self._closed:
            self._link = Link(self._begin, self._take, self._ended)
        return self._link

    def ask(self, form: StructuredOutputsParams, owner: str = "") -> "Future[Verdict]":
        """The verdict on a grammar, now or later. A cancelled future ends a trial that nobody else waits for.

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
            raise QueueFullError(
                f"{len(self._waiting)} new grammars are already waiting to be compiled: try again later"
            )
        self._trials[trial.key] = trial
        self._waiting.put(trial.owner, trial)
        return trial

    def _go_on(self) -> None:
        """Begin the next trials."""
        with self._lock:
            while self._has_room() and len(self._waiting):
                try:
                    link = self._connect()
                except OSError as error:
                    self._pause(f"cannot start a process to check new grammars: {error.strerror}")
                    return
                trial = self._waiting.take()
                if link is None or trial is None:
                    return
                trial.number = next(self._numbers)
                self._running[trial.number] = trial
                link.send(Try(trial.number, trial.form))
                seconds = self._begin.budget.seconds + GRACE_SECONDS
                trial.timer = threading.Timer(seconds, link.kill)
                trial.timer.daemon = True
                trial.timer.start()

    def _has_room(self) -> bool:
        return not self._closed and not self._pauses and len(self._running) < AT_ONCE

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
            self._backoff.lives()
            if verdict.lasting:
                self._verdicts[trial.key] = verdict
                while len(self._verdicts) > MOST_VERDICTS:
                    self._verdicts.popitem(last=False)
        if verdict.untried:
            self._try_again(trial, verdict.error)
        else:
            self._answer(trial, lambda asked: asked.set_result(verdict))
        self._go_on()

    def _try_again(self, trial: Trial, why: str | None) -> None:
        """A trial came to nothing: begin it again soon, unless that was so for too long."""
        delay = trial.backoff.died()
        if self._closed or trial.backoff.hopeless(MOST_STARTS, self._patience):
            self._give_up([trial], f"{why}: try again later")
        else:
            _later(delay, lambda: self._put_back(trial))

    def _put_back(self, trial: Trial) -> None:
        """Try a grammar again, if there still is anybody to know."""
        with self._lock:
            if self._trials.get(trial.key) is trial:
                self._waiting.put_back(trial.owner, trial)
        self._go_on()

    def _give_up(self, trials: list[Trial], why: str) -> None:
        for trial in trials:
            self._answer(trial, lambda asked: asked.set_exception(QueueFullError(why)))

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
                trial.backoff.died()
                if self._closed or trial.backoff.hopeless(MOST_STARTS, self._patience):
                    given_up.append(trial)
                elif trial.asking:
                    self._waiting.put_back(trial.owner, trial)
        why = "the process that checks new grammars crashes repeatedly"
        self._give_up(given_up, f"{why}: try again later")
        self._pause(why)

    def _pause(self, why: str) -> None:
        """There is no process: go on with the next one in a moment, unless that was so for too long."""
        with self._lock:
            delay, self._pauses = self._backoff.died(), True
            hopeless = self._waiting.take_all() if self._backoff.hopeless(MOST_STARTS, self._patience) else []
        # Not called from here: whoever asks holds the lock.
        _later(delay, self._go_on_after_pause)
        self._give_up(hopeless, f"{why}: try again later")

    def _go_on_after_pause(self) -> None:
        with self._lock:
            self._pauses = False
        self._go_on()

    def close(self) -> None:
        """End the process; whoever waits gets an error. May be called again."""
        with self._lock:
            self._closed = True
            link = self._link
            self._waiting.take_all()
            trials = list(self._trials.values())
        self._give_up(trials, "the server is shutting down")
        if link is not None:
            link.kill()


def _later(seconds: float, action: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, action)
    timer.daemon = True
    timer.start()


class Backoff:
    """Doubles the wait with each death, up to a limit; none before the first."""

    def __init__(self, first: float, most: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`first` and `most` are seconds: of the wait after the second death, and of any."""
        self._first, self._most, self._clock = first, most, clock
        self._deaths = 0
        self._since = 0.0

    def died(self) -> float:
        """Count a death; the seconds to wait."""
        if self._deaths == 0:
            self._since = self._clock()
        self._deaths += 1
        return 0.0 if self._deaths == 1 else min(self._most, self._first * 2.0 ** min(self._deaths - 2, 30))

    def lives(self) -> None:
        """It works."""
        self._deaths = 0

    def hopeless(self, deaths: int, seconds: float) -> bool:
        """Whether it has died so often, and for so long."""
        return self._deaths >= deaths and self._clock() - self._since >= seconds
