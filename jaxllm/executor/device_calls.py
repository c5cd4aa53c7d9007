"""The one place where an engine's programs are called: what each takes of the device state, and what it replaces.

Arrays that stay on the devices have no names outside of it. A call is the name of a program and arrays of the host, so
another process that makes the same calls in the same order has the same state.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np
from jax.errors import JaxRuntimeError

from jaxllm.executor.compile.executables import Executables
from jaxllm.executor.step_program import DeviceState

Publish = Callable[[str, Sequence[np.ndarray]], None]
"""Tells other processes of a call before it is made: the program's name and the arrays of the host."""

Parameters = tuple[jax.Array, ...]


@dataclass(frozen=True)
class StateUse:
    """What a program takes before the arrays of the host, and what its result means: (what is returned, new state)."""

    taken: Callable[[Parameters, DeviceState], tuple[Any, ...]]
    given: Callable[[DeviceState, Any], tuple[Any, DeviceState]]


def _only_state(state: DeviceState, result: Any) -> tuple[Any, DeviceState]:
    return None, result


def _with_chosen(state: DeviceState, result: Any) -> tuple[Any, DeviceState]:
    sampled, sampling, last_tokens = result
    return sampled, replace(state, sampling=sampling, last_tokens=last_tokens)


def _with_cache(state: DeviceState, **parts: Any) -> tuple[Any, DeviceState]:
    return None, replace(state, kv_cache=replace(state.kv_cache, **parts))


_STEP = StateUse(lambda parameters, state: (parameters, state), lambda state, result: result)
_LOGPROBS = StateUse(lambda parameters, state: (parameters, state.hidden), lambda state, result: (result, state))
_SAMPLING = StateUse(
    lambda parameters, state: (state.sampling,), lambda state, result: (None, replace(state, sampling=result))
)
_CHOICE = StateUse(
    lambda parameters, state: (parameters, state.hidden, state.sampling, state.last_tokens), _with_chosen
)

_USES = {
    "empty_state": StateUse(lambda parameters, state: (), _only_state),
    "prompt_logprobs": _LOGPROBS,
    "listed_logprobs": _LOGPROBS,
    "sample_constrained": _CHOICE,
    "sample_processed": _CHOICE,
    "sample_from_host": _CHOICE,
    "row_logits": StateUse(
        lambda parameters, state: (parameters, state.hidden, state.sampling), lambda state, result: (result, state)
    ),
    "set_row": _SAMPLING,
    "set_bias": _SAMPLING,
    "set_pages": StateUse(
        lambda parameters, state: (state.page_table,), lambda state, result: (None, replace(state, page_table=result))
    ),
    "set_embeddings": StateUse(
        lambda parameters, state: (state.hidden,), lambda state, result: (None, replace(state, hidden=result))
    ),
    "copy_pages": StateUse(
        lambda parameters, state: (state.kv_cache.pages,), lambda state, result: _with_cache(state, pages=result)
    ),
    "copy_states": StateUse(
        lambda parameters, state: (state.kv_cache.states,), lambda state, result: _with_cache(state, states=result)
    ),
}
"""By the names in `generation_programs`. All others are steps."""


_NOTHING = nullcontext()


class DeviceCalls:
    """The parameters and the state of an engine, and its programs, which change the state.

    `state` does not exist before the call of "empty_state".
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
        self._publish = publish
        self._explain = explain
        if state is not None:
            self.state = state

    @property
    def every(self) -> "tuple[DeviceCalls, ...]":
        """Those of all stages, each with parameters of its own: these."""
        return (self,)

    @property
    def stage_seconds(self) -> tuple[float, ...]:
        """How long each stage has worked so far; empty where there is one."""
        return ()

    def start_clock(self) -> None:
        """Count in `stage_seconds` from here on: what ran before was to warm up."""

    @property
    def is_alone(self) -> bool:
        """Whether no other process makes the same calls."""
        return self._publish is None

    def prepare(self, name: str) -> None:
        """Make the executable of a program, if it is not made yet."""
        self.executables.get(name)

    def call(self, name: str, *arrays: Any) -> Any:
        """Start a program on `arrays` of the host, and take over the new state. Returns its other results, at once."""
        executable = self.executables.get(name)
        if self._publish is not None:
            self._publish(name, arrays)
        use = _USES.get(name, _STEP)
        state: Any = getattr(self, "state", None)
        with self._explaining() if self._explain else _NOTHING:
            made = executable(*use.taken(self.parameters, state), *arrays)
        result, self.state = use.given(state, made)
        return result

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
        self.call("empty_state")

    def delete_state(self) -> None:
        """Free the memory of the state."""
        for leaf in jax.tree.leaves(getattr(self, "state", None)):
            leaf.delete()

    def close(self) -> None:
        """Free the device memory. There are no calls afterwards."""
        self.delete_state()
        for leaf in self.parameters:
            leaf.delete()
        self.executables.close()
