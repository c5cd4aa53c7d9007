"""Cases of the weighted mean, which every implementation is held to."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.pallas_kernels.recurrence import LayerStates
from jaxllm.pallas_kernels.recurrence.cases import ChannelsCase, make_rows
from jaxllm.pallas_kernels.weighted_mean.api import weighted_mean
from jaxllm.pallas_kernels.weighted_mean.inputs import WeightedMeanInputs

# By the name that the other recurrences use: what holds for all of them is tested over all of them.
Case = ChannelsCase


class Inputs(NamedTuple):
    """The arrays of a case, as `weighted_mean` takes them."""

    tokens: WeightedMeanInputs
    states: LayerStates

    def call(self, implementation: str) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        """Outputs and states."""
        return weighted_mean(self.tokens, self.states, implementation=implementation)


def make_inputs(case: ChannelsCase) -> Inputs:
    """Random arrays, with states of two layers; the second one counts."""
    rng = np.random.default_rng(0)

    def random(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape, np.float32))

    shape = (case.rows.tokens, case.channels)
    # With larger keys exponents are rounded to more than tolerances.
    key, decay = 5.0 * random(*shape), -jnp.exp(random(case.channels) - 2.0)
    tokens = WeightedMeanInputs(key, random(*shape), decay, random(case.channels))
    states = random(2, case.rows.num_slots, 3, case.channels)
    # Sums of weights are at least about 1.
    states = states.at[:, :, 1].set(1.0 + jnp.abs(states[:, :, 1]))
    return Inputs(tokens, LayerStates(states, jnp.int32(1), *make_rows(case.rows)))
