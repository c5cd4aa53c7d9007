"""How long stages work, from times at which their outputs are there."""

from dataclasses import dataclass, field
from threading import Event, local

import pytest

from jaxllm.executor.pipeline.clock import StageClock

NOW = local()
"""`NOW.time` is the time of a stage's thread: that of the output it has waited for last."""


@dataclass
class Output:
    """The output of a stage at a time, once it is `there`, or the reason why there is none."""

    time: float
    error: Exception | None = None
    there: Event | None = None
    asked: Event = field(default_factory=Event)

    def block_until_ready(self) -> "Output":
        self.asked.set()
        assert self.there is None or self.there.wait(60)
        if self.error is not None:
            raise self.error
        NOW.time = self.time
        return self


def _clock(stages: int) -> StageClock:
    return StageClock(stages, clock=lambda: float(NOW.time))


def test_a_stage_works_from_its_input_and_its_last_step_on() -> None:
    clock = _clock(2)
    clock.watch([Output(2.0), Output(5.0)], begun=0.0)
    clock.watch([Output(4.0), Output(9.0)], begun=1.0)
    clock.watch([Output(12.0), Output(15.0)], begun=10.0)
    clock.close()
    assert clock.seconds == (2 + 2 + 2, 3 + 4 + 3)


def test_a_later_stage_that_could_be_first_has_its_own_time_only() -> None:
    there = Event()
    first, second = Output(4.0, there=there), Output(5.0)
    clock = _clock(2)
    clock.watch([first, second], begun=0.0)
    assert first.asked.wait(60)
    assert not second.asked.wait(0.05)
    there.set()
    clock.close()
    assert clock.seconds == (4.0, 1.0)


@pytest.mark.parametrize("error", [RuntimeError("Array has been deleted."), KeyError("anything")])
def test_a_stage_that_fails_has_no_time_and_goes_on(error: Exception) -> None:
    clock = _clock(3)
    clock.watch([Output(2.0), Output(3.0, error), Output(6.0)], begun=0.0)
    clock.watch([Output(3.0), Output(7.0), Output(8.0)], begun=1.0)
    clock.close()
    assert clock.seconds == (2 + 1, 7 - 3, 4 + 1)


def test_the_end_does_not_wait_for_a_device_that_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    there = Event()
    clock = _clock(2)
    waited: list[float] = []
    monkeypatch.setattr(clock._threads[-1], "join", waited.append)
    clock.watch([Output(1.0, there=there), Output(2.0)], begun=0.0)
    clock.close()
    assert waited == [5.0]
    assert clock.seconds == (0.0, 0.0)
    there.set()
