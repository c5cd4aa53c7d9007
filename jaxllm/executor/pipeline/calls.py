"""The programs of an engine whose layers are in stages: a step is a program of each stage, one after the other.

All are dispatched at once and run when their input is there. So stages work at the same time, on different steps, as
soon as several are under way.
"""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import Sharding

from jaxllm.executor.compile.buckets import Bucket
from jaxllm.executor.compile.executables import Executables
from jaxllm.executor.compile.program import Executable
from jaxllm.executor.device_calls import DeviceCalls, Parameters
from jaxllm.executor.pipeline.clock import StageClock
from jaxllm.executor.program_table import ProgramRecord, find_record
from jaxllm.executor.sampler.sampler import SampledRows


@dataclass(frozen=True)
class EarlierStage:
    """A stage that is not the last, and where the next one wants the hidden states, by the name of the step."""

    calls: DeviceCalls
    places: Mapping[str, Sharding]


class StagedExecutables(Executables):
    """The executables of the last stage, which looks after those of the stages `before` it."""

    def __init__(self, last: Executables, before: Sequence[Executables]) -> None:
        self._last, self._before = last, before

    @property
    def made(self) -> Mapping[str, tuple[float, bool]]:
        """Those of the last stage."""
        return self._last.made

    @property
    def buckets(self) -> Sequence[Bucket]:
        """See `Executables.buckets`."""
        return self._last.buckets

    def sizes(self) -> list[tuple[int, int]]:
        """Those of the last stage."""
        return self._last.sizes()

    def has_step(self, bucket: Bucket) -> bool:
        """See `Executables.has_step`."""
        return all(each.has_step(bucket) for each in (*self._before, self._last))

    def has(self, name: str) -> bool:
        """See `Executables.has`."""
        return self._of(name).has(name)

    def is_made(self, name: str) -> bool:
        """See `Executables.is_made`; of the last stage, but for what the first one has alone."""
        return self._of(name).is_made(name)

    def get(self, name: str) -> Executable:
        """The last stage's executable, once all stages have theirs; or the first one's, of what only that has."""
        if find_record(name).is_in_every_stage:
            for each in self._before:
                each.get(name)
        return self._of(name).get(name)

    def _of(self, name: str) -> Executables:
        return self._before[0] if find_record(name).is_in_first_stage else self._last

    def make_again(self, why: str) -> bool:
        """See `Executables.make_again`."""
        made = [each.make_again(why) for each in (*self._before, self._last)]
        return any(made)

    def close(self) -> None:
        """See `Executables.close`."""
        for each in (*self._before, self._last):
            each.close()


class StagedCalls(DeviceCalls):
    """`DeviceCalls` of the last stage, whose calls run the stages `before` it first. `state` is that of the last."""

    def __init__(self, executables: Executables, parameters: Parameters, before: Sequence[EarlierStage]) -> None:
        super().__init__(StagedExecutables(executables, [each.calls.executables for each in before]), parameters)
        self._before = before
        self._clock: StageClock | None = None

    @property
    def stage_seconds(self) -> tuple[float, ...]:
        """See `DeviceCalls.stage_seconds`."""
        return (0.0,) * (len(self._before) + 1) if self._clock is None else self._clock.seconds

    def start_clock(self) -> None:
        """See `DeviceCalls.start_clock`."""
        self._clock = StageClock(len(self._before) + 1)

    @property
    def every(self) -> tuple[DeviceCalls, ...]:
        """See `DeviceCalls.every`."""
        return (*(stage.calls for stage in self._before), self)

    def call(self, program: ProgramRecord, *arrays: Any) -> Any:
        """See `DeviceCalls.call`: the result is that of the last stage."""
        if program.is_in_first_stage:
            return self._before[0].calls.call(program, *arrays)
        if program.is_in_every_stage:
            for stage in self._before:
                stage.calls.call(program, *arrays)
        return super().call(program, *arrays)

    def call_sized(self, program: ProgramRecord, size: int, *arrays: Any) -> Any:
        """See `DeviceCalls.call_sized`."""
        if program.is_in_first_stage:
            return self._before[0].calls.call_sized(program, size, *arrays)
        return super().call_sized(program, size, *arrays)

    def set_adapter(self, slot: int, stages: Sequence[Sequence[np.ndarray]]) -> None:
        """See `DeviceCalls.set_adapter`."""
        for calls, own in zip(self.every, stages, strict=True):
            calls.set_own_adapter(slot, own)

    def step(self, bucket: Bucket, *arrays: Any) -> Any:
        """See `DeviceCalls.step`: the result is that of the last stage."""
        begun = time.monotonic()
        outputs = []
        for stage in self._before:
            hidden = stage.calls.step(bucket, *arrays)
            arrays = (arrays[0], jax.device_put(hidden, stage.places[bucket.name]))
            outputs.append(hidden)
        sampled: SampledRows = super().step(bucket, *arrays)
        if self._clock is not None:
            self._clock.watch([*outputs, sampled.token_ids], begun)
        return sampled

    def delete_state(self) -> None:
        """Free the memory of all states."""
        for stage in self._before:
            stage.calls.delete_state()
        super().delete_state()

    def close(self) -> None:
        """Free the device memory. There are no calls afterwards."""
        if self._clock is not None:
            self._clock.close()
        for stage in self._before:
            stage.calls.close()
        super().close()
