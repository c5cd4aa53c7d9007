"""The one place where an engine's programs are called, with the device state that their records name.

Arrays that stay on the devices have no names outside of it. A call is a program and arrays of the host, so another
process that makes the same calls in the same order has the same state.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import jax
import numpy as np
from jax.errors import JaxRuntimeError

from jaxllm.executor.compile.buckets import Bucket
from jaxllm.executor.compile.executables import Executables
from jaxllm.executor.device_state import DeviceState
from jaxllm.executor.program_table import (
    EMPTY_ADAPTERS,
    EMPTY_STATE,
    ROW_SQUARES,
    SCALE_ADAPTER,
    SET_ADAPTER,
    STEP,
    ProgramRecord,
    find_record,
)

Publish = Callable[[str, Sequence[np.ndarray]], None]
"""Tells other processes of a call before it is made: the program's name and the arrays of the host."""

Parameters = tuple[jax.Array, ...]


_NOTHING = nullcontext()


class DeviceCalls:
    """The parameters and the state of an engine, and its programs, which change the state.

    `state` does not exist before the call of `EMPTY_STATE`, and `adapters` are those of the slots, made by
    `EMPTY_ADAPTERS` where there are any.
    """

    state: DeviceState

    def __init__(
        self,
        executables: Executables,
        parameters: Parameters,
        *,
        state: DeviceState | None = None,
        publish: Publish | None = None,
        explain: Callable[[], None] | None = None,
    ) -> None:
        """`explain` is called when a program has failed: it may find that another process is the cause."""
        self.executables = executables
        self.parameters = parameters
        self.adapters: Any = ()
        self.row_squares: Any = ()
        self._publish = publish
        self._explain = explain
        if state is not None:
            self.state = state

    @property
    def every(self) -> "tuple[DeviceCalls, ...]":
        """The calls of all stages, each with its own parameters; here only this one."""
        return (self,)

    @property
    def stage_seconds(self) -> tuple[float, ...]:
        """How long each stage has worked so far; empty where there is one."""
        return ()

    def start_clock(self) -> None:
        """Count in `stage_seconds` from here on: what ran before was to warm up."""

    @property
    def plain_state(self) -> DeviceState:
        """`state` without what the drafter keeps, which stays as it is when a program replaces the rest."""
        return self.state.plain

    @plain_state.setter
    def plain_state(self, new: DeviceState) -> None:
        self.state = new.with_drafts_of(self.state)

    @property
    def is_alone(self) -> bool:
        """Whether no other process makes the same calls."""
        return self._publish is None

    def prepare(self, name: str) -> None:
        """Make the executable of this name, if it is not made yet."""
        self.executables.get(name)

    def step(self, bucket: Bucket, *arrays: Any) -> Any:
        """Start the step of a bucket; see `call`."""
        return self._run(STEP, bucket.name, arrays)

    def call(self, program: ProgramRecord, *arrays: Any) -> Any:
        """Start a program on `arrays` of the host, and take over the new state. Returns its result, at once."""
        return self._run(program, program.name, arrays)

    def call_sized(self, program: ProgramRecord, size: int, *arrays: Any) -> Any:
        """`call`, of the program of a size."""
        return self._run(program, program.sized_name(size), arrays)

    def set_adapter(self, slot: int, stages: Sequence[Sequence[np.ndarray]]) -> None:
        """Bring an adapter to a slot: for each stage the inputs of `SET_ADAPTER`."""
        (own,) = stages
        self.set_own_adapter(slot, own)

    def set_own_adapter(self, slot: int, arrays: Sequence[np.ndarray]) -> None:
        """Bring an adapter, or the part of it for this stage, to a slot."""
        DeviceCalls.call(self, SET_ADAPTER, np.int32(slot), *arrays)
        if self.executables.has(SCALE_ADAPTER.name):
            if not self.row_squares:
                DeviceCalls.call(self, ROW_SQUARES)
            DeviceCalls.call(self, SCALE_ADAPTER, np.int32(slot))

    def forget_weights(self) -> None:
        """The weights are others now: what was measured of the old ones counts no more."""
        for each in self.every:
            each.row_squares = ()

    def repeat(self, name: str, arrays: Sequence[Any]) -> None:
        """Make a call that another process has published. Raises `EngineError` for an unknown program."""
        self._run(find_record(name), name, arrays)

    def _run(self, program: ProgramRecord, name: str, arrays: Sequence[Any]) -> Any:
        executable = self.executables.get(name)
        if self._publish is not None:
            self._publish(name, arrays)
        with self._explaining() if self._explain else _NOTHING:
            outputs = executable(*program.arguments(self), *arrays)
        return program.take_results(self, outputs)

    def fetch(self, results: Any) -> Any:
        """Wait for results, and bring them to the host."""
        with self._explaining() if self._explain else _NOTHING:
            return jax.device_get(results)

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except JaxRuntimeError:
            assert self._explain is not None
            self._explain()
            raise

    def renew_state(self) -> None:
        """Make the state again, empty: a step that failed may have taken it."""
        self.delete_state()
        self.call(EMPTY_STATE)

    def delete_state(self) -> None:
        """Free the memory of the state."""
        for leaf in jax.tree.leaves(getattr(self, "state", None)):
            leaf.delete()

    def renew_adapters(self) -> None:
        """Make the slots for adapters again, empty."""
        self.delete_adapters()
        self.call(EMPTY_ADAPTERS)

    def delete_adapters(self) -> None:
        """Free the memory of the slots for adapters in all stages."""
        for each in self.every:
            for leaf in each.adapters:
                leaf.delete()
            each.adapters = ()

    def close(self) -> None:
        """Free the device memory. There are no calls afterwards."""
        self.delete_state()
        for leaf in (*self.parameters, *self.adapters):
            leaf.delete()
        self.executables.close()
