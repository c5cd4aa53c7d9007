"""Cases of the selective scan, which every implementation is held to."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.pallas_kernels.recurrence import LayerStates
from jaxllm.pallas_kernels.recurrence.cases import ROWS, RowsCase, make_rows
from jaxllm.pallas_kernels.selective_scan.api import selective_scan
from jaxllm.pallas_kernels.selective_scan.inputs import SelectiveScanInputs


@dataclass(frozen=True)
class Case:
    """Rows, channels, and the size of the state."""

    rows: RowsCase
    channels: int = 12
    state: int = 4

    @property
    def name(self) -> str:
        """Name of the rows."""
        return self.rows.name


CASES: tuple[Case, ...] = tuple(Case(rows) for rows in ROWS)


class Inputs(NamedTuple):
    """The arrays of a case, as `selective_scan` takes them."""

    tokens: SelectiveScanInputs
    states: LayerStates

    def call(self, implementation: str) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        """Outputs and states."""
        return selective_scan(self.tokens, self.states, implementation=implementation)


def make_inputs(case: Case) -> Inputs:
    """Random arrays, with states of two layers, of which the second counts."""
    rng = np.random.default_rng(0)
    count = case.rows.tokens

    def random(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape, np.float32))

    x, rate = random(count, case.channels), jax.nn.softplus(random(count, case.channels))
    write, read = random(count, case.state), random(count, case.state)
    log_decay = -jnp.exp(random(case.channels, case.state) - 1.0)
    states = random(2, case.rows.num_slots, case.state, case.channels)
    tokens = SelectiveScanInputs(x, rate, write, read, log_decay)
    return Inputs(tokens, LayerStates(states, jnp.int32(1), *make_rows(case.rows)))
