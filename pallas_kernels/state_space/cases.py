"""Cases of state spaces, which every implementation is held to."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.pallas_kernels.recurrence import LayerStates
from jaxllm.pallas_kernels.recurrence.cases import MIXED, ROWS, RowsCase, make_rows
from jaxllm.pallas_kernels.state_space.api import state_space
from jaxllm.pallas_kernels.state_space.inputs import StateSpaceInputs


@dataclass(frozen=True)
class Case:
    """Rows, and the numbers and sizes of heads."""

    rows: RowsCase
    heads: int = 4
    size: int = 6
    groups: int = 2
    state: int = 8
    dtype: str = "float32"

    @property
    def name(self) -> str:
        """Name of the rows, and of other special features."""
        return f"{self.rows.name}-{self.groups}-{self.dtype}"


CASES: tuple[Case, ...] = (
    *(Case(rows) for rows in ROWS),
    Case(MIXED, groups=1, dtype="bfloat16"),
)


class Inputs(NamedTuple):
    """The arrays of a case, as `state_space` takes them."""

    tokens: StateSpaceInputs
    states: LayerStates

    def call(self, implementation: str) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        """Outputs and states."""
        return state_space(self.tokens, self.states, implementation=implementation)


def make_inputs(case: Case) -> Inputs:
    """Random arrays, with states of two layers; the second one counts."""
    rng = np.random.default_rng(0)
    count = case.rows.tokens

    def random(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape, np.float32))

    rate = jax.nn.softplus(random(count, case.heads))
    x, write, read = (
        random(count, *shape).astype(case.dtype)
        for shape in ((case.heads, case.size), (case.groups, case.state), (case.groups, case.state))
    )
    states = random(2, case.rows.num_slots, case.heads, case.size, case.state)
    tokens = StateSpaceInputs(x, rate, -rate * 0.3, write, read)
    return Inputs(tokens, LayerStates(states, jnp.int32(1), *make_rows(case.rows)))
