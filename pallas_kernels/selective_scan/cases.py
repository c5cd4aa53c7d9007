"""Cases of the selective scan, which every implementation is held to."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.pallas_kernels.recurrence import LayerStates
from jaxllm.pallas_kernels.recurrence.cases import MIXED, PROMPT, ROWS, RowsCase, make_rows
from jaxllm.pallas_kernels.selective_scan.api import selective_scan
from jaxllm.pallas_kernels.selective_scan.inputs import SelectiveScanInputs


@dataclass(frozen=True)
class Case:
    """Rows, channels, and the size of the state."""

    rows: RowsCase
    channels: int = 12
    state: int = 4
    heads: int = 1

    @property
    def name(self) -> str:
        """Name of the rows, and how many heads there are, if several."""
        return self.rows.name if self.heads == 1 else f"{self.rows.name}_{self.heads}"


CASES: tuple[Case, ...] = (*(Case(rows) for rows in ROWS), Case(PROMPT, heads=3), Case(MIXED, heads=3))


class Inputs(NamedTuple):
    """The arrays of a case, as `selective_scan` takes them."""

    tokens: SelectiveScanInputs
    states: LayerStates

    def call(self, implementation: str) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        """Outputs and states."""
        return selective_scan(self.tokens, self.states, implementation=implementation)


def make_inputs(case: Case) -> Inputs:
    """Random arrays, with states of two layers; the second one counts."""
    rng = np.random.default_rng(0)
    count = case.rows.tokens

    def random(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape, np.float32))

    x, rate = random(count, case.channels), jax.nn.softplus(random(count, case.channels))
    of_token = (count, case.state) if case.heads == 1 else (count, case.heads, case.state)
    write, read = random(*of_token), random(*of_token)
    log_decay = -jnp.exp(random(case.channels, case.state) - 1.0)
    states = random(2, case.rows.num_slots, case.state, case.channels)
    tokens = SelectiveScanInputs(x, rate, write, read, log_decay)
    return Inputs(tokens, LayerStates(states, jnp.int32(1), *make_rows(case.rows)))
