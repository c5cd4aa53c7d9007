"""Keeps an engine running: starts its process, and another one when it ends, as long as it may."""

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, TypeVar

from jaxllm.config import EngineConfig
from jaxllm.config.engine_info import EngineInfo
from jaxllm.config.progress import silent
from jaxllm.errors import EngineError
from jaxllm.serving.ipc.client.connection import EngineConnection, Launch
from jaxllm.serving.ipc.messages import FromEngine

logger = logging.getLogger(__name__)

_KILL_SECONDS = 30.0
"""After so long a process that was killed counts as one that cannot be."""
_FIRST_DELAY = 0.5
_LONGEST_DELAY = 15.0
_RECENT = 30.0
STALE_WEIGHTS = "the engine was restarted and has lost its updated weights: repeat the update with all tensors"
"""The error of an engine that has the checkpoint's weights, which are not those that are wanted."""


class RestartBudget:
    """At most so many restarts within a window of time; those that follow each other wait longer and longer."""

    def __init__(self, most: int | None, window: float, clock: Callable[[], float] = time.monotonic) -> None:
        """`most` restarts within `window` seconds, None: any number."""
        self._most, self._window, self._clock = most, window, clock
        self._taken: deque[float] = deque()

    def take(self) -> float | None:
        """Seconds to wait before the next restart, which is counted; None when there may be no more."""
        now = self._clock()
        while self._taken and now - self._taken[0] > self._window:
            self._taken.popleft()
        if self._most is not None and len(self._taken) >= self._most:
            return None
        # What has lived for a while is started at once.
        recent = sum(now - taken <= _RECENT for taken in self._taken)
        self._taken.append(now)
        return min(_LONGEST_DELAY, _FIRST_DELAY * 2 ** (recent - 1)) if recent else 0.0

    def __str__(self) -> str:
        """Why there may be no more, after the reason of the last end."""
        if not self._most:
            return ""
        return f"; there were {self._most} restarts within {self._window:g} s (max_restarts, restart_window)"


class EngineOwner(Protocol):
    """Whoever has a supervised engine. It sorts by generation what comes from several processes one after another."""

    def hear(self, generation: int, message: FromEngine) -> None:
        """A message of the engine, in the listening thread."""

    def hear_end(self, generation: int, error: EngineError) -> None:
        """The process has ended, in the listening thread: `EngineSupervisor.replace` is to be called."""

    def take_restart(self, info: EngineInfo) -> None:
        """Another engine is ready, on the event loop."""

    def take_loss(self, error: EngineError) -> None:
        """There will be no other engine, on the event loop."""


class EngineSupervisor:
    """One engine after another. Belongs to an event loop.

    Every process has a generation, by which its last messages are told from those of the next.
    """

    def __init__(self, owner: EngineOwner, launch: Launch, budget: RestartBudget) -> None:
        """Nothing is started yet."""
        self._owner, self._launch, self._budget = owner, launch, budget
        self.generation = 0
        self.connection = self._connect()
        """To the process of now, or to the one to come: it keeps what is sent meanwhile."""
        self._config: EngineConfig
        self._settings: dict[str, Any] = {}
        self._retired = False
        self._restarting: asyncio.Task[None] | None = None

    async def start(self, config: EngineConfig, **settings: Any) -> EngineInfo:
        """Start the first process. `settings` are those of `EngineConnection.start`, and its errors are raised."""
        self._config, self._settings = config, settings
        info = await run_in_thread(partial(self.connection.start, config, **settings))
        # Who restarts later draws no bar over the log.
        self._settings = {**settings, "progress": silent}
        return info

    def replace(self, error: EngineError, *, kill: bool = False) -> None:
        """The process has ended, or shall be killed, for this reason: start another one, or tell the owner why not.

        Requests that were never sent to it go to the next one.
        """
        old = self.connection
        if kill:
            old.kill(str(error))
        if self._retired:
            self._owner.take_loss(error)
            return
        delay = self._renew()
        if delay is None:
            self._give_up(error)
            return
        logger.error("%s; restarting it%s", error, f" in {delay:g} s" if delay else "")
        self._restarting = asyncio.create_task(self._restart(old, delay))

    @property
    def has_other_weights(self) -> bool:
        """Whether the weights that are wanted are not the checkpoint's."""
        return "stale_weights" in self._settings

    def mark_weights_stale(self) -> None:
        """The engine has other weights than its checkpoint: one that is started again needs them first."""
        self._settings["stale_weights"] = STALE_WEIGHTS

    def trust_weights(self) -> None:
        """The weights that are wanted are the checkpoint's after all."""
        self._settings.pop("stale_weights", None)

    def retire(self) -> None:
        """From now on nothing is started again."""
        self._retired = True

    async def close(self) -> None:
        """End the process, also one that is starting."""
        self.retire()
        await run_in_thread(self.connection.close)
        if self._restarting is not None:
            self._restarting.cancel()
            await asyncio.gather(self._restarting, return_exceptions=True)

    def _connect(self) -> EngineConnection:
        owner, generation = self._owner, self.generation
        return EngineConnection(partial(owner.hear, generation), partial(owner.hear_end, generation), self._launch)

    def _renew(self) -> float | None:
        """Make the connection of the next process; seconds until that may start, None if it may not."""
        delay = self._budget.take()
        if delay is not None:
            unsent = self.connection.unsent()
            self.generation += 1
            self.connection = self._connect()
            for message in unsent:
                self.connection.send(message)
        return delay

    async def _restart(self, old: EngineConnection, delay: float) -> None:
        began = time.monotonic()
        # There may be no room for two on the devices.
        if not await run_in_thread(partial(old.join, _KILL_SECONDS)):
            self._give_up(EngineError(f"the engine process {old.pid} cannot be killed"))
            return
        while (failure := await self._start_again(delay)) is not None:
            reason = EngineError(f"the engine could not be restarted: {failure}")
            if self._retired:
                self._owner.take_loss(reason)
                return
            again = self._renew()
            if again is None:
                self._give_up(reason)
                return
            delay = again
            logger.error("%s; next try in %g s", reason, delay)
        logger.info("the engine is back after %.1f s", time.monotonic() - began)
        self._owner.take_restart(self.connection.info)

    async def _start_again(self, delay: float) -> Exception | None:
        """Start the process after a while; the error, if that fails."""
        await asyncio.sleep(delay)
        try:
            await run_in_thread(partial(self.connection.start, self._config, **self._settings))
        except Exception as error:  # noqa: BLE001  (whatever it is, another try may go well)
            return error
        return None

    def _give_up(self, error: EngineError) -> None:
        self.retire()
        self._owner.take_loss(EngineError(f"{error}{self._budget}"))


Result = TypeVar("Result")


async def run_in_thread(function: Callable[[], Result]) -> Result:
    """Run this in a thread of its own. `asyncio.to_thread` has few, which many starts at once would take from others.

    If this is cancelled, the thread goes on.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[Result] = loop.create_future()

    def finish(result: Result | None, error: BaseException | None) -> None:
        if done.done():
            return
        if error is None:
            done.set_result(result)  # type: ignore[arg-type]
        else:
            done.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = function()
        except BaseException as caught:  # noqa: BLE001  (whatever it is, it is for whoever waits)
            error = caught
        # A loop that is closed waits for nothing.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(finish, result, error)

    threading.Thread(target=run, name="own-thread", daemon=True).start()
    return await done
