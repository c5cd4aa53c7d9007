"""Cases of the matrix memory, which every implementation is held to."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.pallas_kernels.matrix_memory.api import matrix_memory
from jaxllm.pallas_kernels.matrix_memory.inputs import MatrixMemoryInputs
from jaxllm.pallas_kernels.recurrence import LayerStates
from jaxllm.pallas_kernels.recurrence.cases import ROWS, RowsCase, make_rows


@dataclass(frozen=True)
class Case:
    """Rows, heads, and sizes of these."""

    rows: RowsCase
    heads: int = 2
    key_size: int = 8
    value_size: int = 6

    @property
    def name(self) -> str:
        """Name of the rows."""
        return self.rows.name


CASES: tuple[Case, ...] = tuple(Case(rows) for rows in ROWS)


class Inputs(NamedTuple):
    """The arrays of a case, as `matrix_memory` takes them."""

    tokens: MatrixMemoryInputs
    states: LayerStates

    def call(self, implementation: str) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        """Outputs and states."""
        return matrix_memory(self.tokens, self.states, eps=1e-3, implementation=implementation)


def make_inputs(case: Case) -> Inputs:
    """Random arrays, with states of two layers; the second one counts."""
    rng = np.random.default_rng(0)
    count, heads = case.rows.tokens, case.heads

    def random(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape, np.float32))

    # Of one sign: weights that add up to nearly nothing would make much of the last bits.
    query, key = (jnp.abs(random(count, heads, case.key_size)) for _ in range(2))
    value, taken = random(count, heads, case.value_size), 3.0 * random(count, heads)
    decay = jax.nn.log_sigmoid(2.0 + 3.0 * random(count, heads))
    states = random(2, case.rows.num_slots, heads, case.key_size, case.value_size + 2)
    states = states.at[..., -2].set(jnp.abs(states[..., -2]))
    # The largest exponent is one number for all keys.
    states = states.at[..., -1].set(states[..., :1, -1])
    tokens = MatrixMemoryInputs(query, key, value, taken, decay)
    return Inputs(tokens, LayerStates(states, jnp.int32(1), *make_rows(case.rows)))
