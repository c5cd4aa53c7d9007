"""How long each stage of an engine works: what is left of the time, it waits for the stage before, or for the host."""

import time
from collections.abc import Sequence
from queue import SimpleQueue
from threading import Thread
from typing import Any

import jax
from jax.errors import JaxRuntimeError


class _Step:
    """When a step was dispatched, and when each stage was done with it."""

    def __init__(self, count: int) -> None:
        self.begun = time.monotonic()
        self.ends = [0.0] * count


class StageClock:
    """Waits for what stages give, each in a thread of its own, because a device does not tell how long it worked.

    A stage works on a step from when it is dispatched, the stage before has given its hidden states and the stage
    itself has done the step before, until what it gives is there. So the way from stage to stage counts as work.
    """

    def __init__(self, count: int) -> None:
        self._seconds = [0.0] * count
        self._queues: list[SimpleQueue[tuple[_Step, Any] | None]] = [SimpleQueue() for _ in range(count)]
        self._threads = [
            Thread(target=self._run, args=(stage,), name=f"stage-{stage}-clock", daemon=True) for stage in range(count)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def seconds(self) -> tuple[float, ...]:
        """What each stage has worked so far."""
        return tuple(self._seconds)

    def watch(self, step: Sequence[Any]) -> None:
        """A step was dispatched just now; it has an array for each stage that is there once the stage is done."""
        watched = _Step(len(step))
        for queue, output in zip(self._queues, step, strict=True):
            queue.put((watched, output))

    def close(self) -> None:
        """Wait for no more."""
        for queue in self._queues:
            queue.put(None)
        for thread in self._threads:
            thread.join()

    def _run(self, stage: int) -> None:
        last = 0.0
        while (item := self._queues[stage].get()) is not None:
            step, output = item
            try:
                jax.block_until_ready(output)
            except (JaxRuntimeError, RuntimeError):
                # Who collects the step hears of it. Of a sleeping engine the array may be gone.
                continue
            finally:
                del item, output
            end = step.ends[stage] = time.monotonic()
            # The thread of the stage before may get its turn a little later than this one.
            given = min(step.ends[stage - 1], end) if stage else step.begun
            self._seconds[stage] += end - max(last, step.begun, given)
            last = end
