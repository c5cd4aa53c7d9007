"""Whether there is an engine, and whether it answers."""

import asyncio
import threading
import time
from collections.abc import Callable

from jaxllm.errors import EngineError, fresh

RECONCILE_SECONDS = 5.0
"""How often both sides compare which requests there are, and an idle engine is asked whether it lives."""
RESTART_WAIT_SECONDS = 10.0
"""How long requests wait for an engine that is started again; then they are told to come back later."""
RETRY_AFTER = 1.0
"""Seconds after which a client may try again."""
TICK_SECONDS = 0.5
"""How often the time that passes is counted."""


class Heartbeat:
    """How long the engine owes an answer. Thread-safe.

    Time counts only as it is told by `tick`, and at most two ticks at once: when this process could not run for a
    while, because it was stopped or busy, the engine is not to blame.
    """

    def __init__(self, limit: float) -> None:
        """After `limit` seconds without an answer the engine counts as hanging."""
        self.limit = limit
        self._owed = False
        self._silence = 0.0
        self._lock = threading.Lock()

    def expect(self) -> None:
        """Something was sent that will be answered."""
        with self._lock:
            self._owed = True

    def heard(self, *, owed: bool) -> None:
        """The engine said something; if more is owed, that is from now on."""
        with self._lock:
            self._owed = owed
            self._silence = 0.0

    def settle(self, *, owed: bool) -> None:
        """Nothing was heard, but what is owed may have changed."""
        with self._lock:
            self._owed = owed
            if not owed:
                self._silence = 0.0

    def tick(self, seconds: float) -> None:
        """So much time has passed since the last tick."""
        with self._lock:
            if self._owed:
                self._silence += min(seconds, 2 * TICK_SECONDS)

    @property
    def silence(self) -> float:
        """Seconds for which an answer has been owed."""
        return self._silence

    @property
    def hangs(self) -> bool:
        """Whether that is too long."""
        return self._silence > self.limit


def come_back(down: EngineError) -> EngineError:
    """What a request is told that cannot wait for the next engine."""
    return EngineError(f"{down}; another one is starting: try again", down.retry_after)


class EngineHealth:
    """Whether requests find an engine: now, soon, or never again. Belongs to an event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.loss: asyncio.Future[EngineError] = self._loop.create_future()
        """Done when the engine is gone for good, with the reason."""
        self.error: EngineError | None = None
        """Why there will be no engine any more."""
        self.down: EngineError | None = None
        """Why there is no engine at the moment; requests for the next one may wait."""
        self._down_until = 0.0
        self._changed = asyncio.Event()

    def check(self) -> None:
        """Raise `EngineError`, saying why, when there is no engine that answers."""
        error = self.error or self.down
        if error is not None:
            raise fresh(error)

    @property
    def is_up(self) -> bool:
        """Whether there is an engine that answers."""
        return self.error is None and self.down is None

    @property
    def state(self) -> str:
        """One word for people: `up`, `starting` (again, after its end) or `gone`."""
        return "gone" if self.error is not None else "up" if self.down is None else "starting"

    @property
    def is_soon(self) -> bool:
        """Whether there is an engine, or one to come soon."""
        return self.error is None and (self.down is None or self._loop.time() <= self._down_until)

    def check_soon(self) -> None:
        """Raise `EngineError` when there is no engine, and none to come soon."""
        if self.error is not None:
            raise fresh(self.error)
        if self.down is not None and self._loop.time() > self._down_until:
            raise come_back(self.down)

    async def wait(self) -> None:
        """Wait while there is no engine. Raises `EngineError` when there will be none."""
        while self.down is not None and self.error is None:
            self._changed.clear()
            await self._changed.wait()
        self.check()

    def suspend(self, error: EngineError) -> EngineError:
        """There is no engine for now; returns what its requests are told."""
        self.down, self._down_until = EngineError(str(error), RETRY_AFTER), self._loop.time() + RESTART_WAIT_SECONDS
        return self.down

    def resume(self) -> None:
        """There is an engine again."""
        self.down = None
        self._changed.set()

    def lose(self, error: EngineError) -> None:
        """There will be no other engine."""
        self.error = error
        self._changed.set()
        if not self.loss.done():
            self.loss.set_result(error)


async def watch(
    health: EngineHealth, heartbeat: Heartbeat, ask: Callable[[], None], give_up: Callable[[EngineError], None]
) -> None:
    """Count for how long answers are owed, and `ask` for some, so that an idle engine would be missed too.

    `give_up` is called when an answer is owed for too long. Ends when there will be no engine any more.
    """
    now = asked = time.monotonic()
    while health.error is None:
        await asyncio.sleep(TICK_SECONDS)
        before, now = now, time.monotonic()
        heartbeat.tick(now - before)
        if health.down is not None:
            continue
        if heartbeat.hangs:
            give_up(EngineError(f"the engine hangs: it has not responded for {heartbeat.silence:.0f} s"))
        elif now - asked >= min(RECONCILE_SECONDS, heartbeat.limit / 2):
            asked = now
            ask()
