"""The last steps of an engine, one by one, for people who watch it; nothing is recorded while nobody does."""

import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from jaxllm.engine.stats import NO_WORK, StepStats

if TYPE_CHECKING:
    from jaxllm.planning.step_work import StepWork
    from jaxllm.scheduler.plan import StepPlan

WATCHED_SECONDS = 3.0
"""For so long after somebody has asked, steps are recorded."""
MOST_STEPS = 128
"""Steps that an answer has at most: the last ones."""


class StepRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """One step: when it was what, in seconds, and what it did.

    `began` is by the engine's clock, and the other times count from there: the step is `dispatched` once the host has
    scheduled and sent it; the device is free for it from `device` on, and its tokens are on the host when it is
    `ready`; with `ended` the host has made its outputs. So the device worked from `device` to `ready`, or less where
    the host was late to look. `flops` and `bytes` are the work of each device by the plan's estimate, 0 where unknown.
    """

    number: int
    began: float
    dispatched: float
    device: float
    ready: float
    ended: float
    shape: int
    tokens: int
    rows: int
    flops: float
    bytes: float


class StepLog:
    """Records steps while somebody asks for them. Belongs to the engine's thread."""

    def __init__(self, make_work: "Callable[[], StepWork]", clock: Callable[[], float] = time.monotonic) -> None:
        """`make_work` is called when somebody asks first: what counts the work of steps takes a while to import."""
        self.is_on = False
        """Whether steps are recorded."""
        self._make_work, self._clock = make_work, clock
        self._work: StepWork | None = None
        self._until = 0.0
        self._number = 0
        self._dispatched: dict[float, float] = {}  # by the time a step began
        self._ready, self._began, self._amounts = 0.0, 0.0, NO_WORK
        self._free = 0.0  # since when the device has had nothing of an earlier step to do
        self._steps: deque[StepRecord] = deque(maxlen=MOST_STEPS)

    def last(self) -> list[StepRecord]:
        """The last steps, the oldest first; and record those of the next seconds."""
        if self._work is None:
            self._work = self._make_work()
        self._until = self._clock() + WATCHED_SECONDS
        self.is_on = True
        return list(self._steps)

    def on_dispatched(self, began: float) -> None:
        """The step that began then is on its way."""
        self._dispatched[began] = self._clock()

    def on_collected(self, began: float, plan: "StepPlan") -> None:
        """Its tokens are on the host, and the scheduler does not know of them yet."""
        self._free, self._ready, self._began = self._ready, self._clock(), began
        assert self._work is not None
        self._amounts = self._work.of(plan.starts, plan.num_new_tokens, int(plan.samples.sum()))

    def on_end(self, end: float, stats: StepStats) -> None:
        """Its outputs are made: what `stats` says is about this step."""
        began, dispatched = self._began, self._dispatched.pop(self._began, None)
        if dispatched is not None:
            self._number += 1
            flops, read, written = self._amounts
            record = StepRecord(
                number=self._number,
                began=round(began, 6),
                dispatched=round(dispatched - began, 6),
                device=round(max(dispatched, self._free) - began, 6),
                ready=round(self._ready - began, 6),
                ended=round(end - began, 6),
                shape=stats.bucket_tokens,
                tokens=stats.num_tokens,
                rows=stats.num_rows,
                flops=flops,
                bytes=read + written,
            )
            self._steps.append(record)
        if end > self._until:
            self.is_on = False
            self._dispatched.clear()
