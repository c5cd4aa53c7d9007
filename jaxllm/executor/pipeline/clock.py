"""How long each stage of an engine works: what is left of the time, it waits for the stage before, or for the host."""

import time
from collections.abc import Callable, Sequence
from queue import SimpleQueue
from threading import Thread
from typing import Any

import jax


class StageClock:
    """Waits for what stages give, each in a thread of its own, because a device does not tell how long it worked.

    A stage works on a step from when it is dispatched, the stage before has given its hidden states and the stage
    itself has done the step before, until what it gives is there. So the way from stage to stage counts as work.
    """

    def __init__(self, count: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seconds = [0.0] * count
        # With each step comes when the stage before gave its hidden states: its thread passes both on. If all began to
        # wait at once, one could be done before it knows.
        self._queues: list[SimpleQueue[tuple[list[Any], float] | None]] = [SimpleQueue() for _ in range(count)]
        self._threads = [
            Thread(target=self._run, args=(stage,), name=f"stage-{stage}-clock", daemon=True) for stage in range(count)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def seconds(self) -> tuple[float, ...]:
        """Seconds that each stage has worked so far."""
        return tuple(self._seconds)

    def watch(self, step: Sequence[Any], begun: float) -> None:
        """A step has an array for each stage that is there once the stage is done; it was dispatched from `begun` on.

        `begun` is a time of `time.monotonic`.
        """
        self._queues[0].put((list(step), begun))

    def close(self) -> None:
        """Wait for no more; for what is under way 5 seconds at most."""
        self._queues[0].put(None)
        # The last one ends when all others have. A device that hangs must not keep the engine from ending, and the
        # threads are daemons.
        self._threads[-1].join(5.0)

    def _run(self, stage: int) -> None:
        last = 0.0
        following = self._queues[stage + 1] if stage + 1 < len(self._queues) else None
        while (item := self._queues[stage].get()) is not None:
            outputs, given = item
            try:
                jax.block_until_ready(outputs[stage])
            except Exception:  # noqa: BLE001
                # Who collects the step hears of it. Of a sleeping engine the array may be gone. Whatever it is: a
                # thread that ended here would leave its queue, and those after it, to keep arrays for ever.
                pass
            else:
                end = self._clock()
                self._seconds[stage] += end - max(last, given)
                last = given = end
            outputs[stage] = None  # What is there is not kept.
            if following is not None:
                following.put((outputs, given))
            del item, outputs
        if following is not None:
            following.put(None)
