"""The weighted mean token by token: the oracle of the other implementations."""

import jax

from jaxllm.pallas_kernels.recurrence import LayerStates
from jaxllm.pallas_kernels.recurrence.reference import reference_rows
from jaxllm.pallas_kernels.weighted_mean.inputs import WeightedMeanInputs, mean_of, state_after


def reference_weighted_mean(
    inputs: WeightedMeanInputs, states: LayerStates, *, platform: str = "cpu"
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """See `weighted_mean`."""

    def token(tokens: tuple[jax.Array, ...], state: jax.Array) -> tuple[jax.Array, jax.Array]:
        key, value = tokens
        return mean_of(state, key, value, inputs.bonus), state_after(state, key, value, inputs.log_decay)

    return reference_rows(token, inputs[:2], states)
