"""Cases of the linear recurrence, which every implementation is held to."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.pallas_kernels.linear_recurrence.api import linear_recurrence
from jaxllm.pallas_kernels.linear_recurrence.inputs import LinearRecurrenceInputs
from jaxllm.pallas_kernels.recurrence import LayerStates
from jaxllm.pallas_kernels.recurrence.cases import ChannelsCase, make_rows

# By the name that the other recurrences use: what holds for all of them is tested over all of them.
Case = ChannelsCase


class Inputs(NamedTuple):
    """The arrays of a case, as `linear_recurrence` takes them."""

    tokens: LinearRecurrenceInputs
    states: LayerStates

    def call(self, implementation: str) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        """Outputs and states."""
        return linear_recurrence(self.tokens, self.states, implementation=implementation)


def make_inputs(case: ChannelsCase) -> Inputs:
    """Random arrays, with states of two layers; the second one counts."""
    rng = np.random.default_rng(0)

    def random(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape, np.float32))

    shape = (case.rows.tokens, case.channels)
    # Some channels forget nearly all, others nearly nothing.
    tokens = LinearRecurrenceInputs(jax.nn.sigmoid(4.0 * random(*shape)), random(*shape))
    states = random(2, case.rows.num_slots, case.channels)
    return Inputs(tokens, LayerStates(states, jnp.int32(1), *make_rows(case.rows)))
