"""The state space token by token: the oracle of the other implementations."""

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.recurrence import LayerStates
from jaxllm.pallas_kernels.recurrence.reference import reference_rows
from jaxllm.pallas_kernels.state_space.inputs import StateSpaceInputs


def reference_state_space(
    inputs: StateSpaceInputs, states: LayerStates, *, platform: str = "cpu"
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """See `state_space`."""
    times = inputs.x.shape[1] // inputs.write.shape[1]

    def token(inputs: tuple[jax.Array, ...], state: jax.Array) -> tuple[jax.Array, jax.Array]:
        x, rate, decay, write, read = inputs
        write, read = (jnp.repeat(each, times, axis=0) for each in (write, read))
        state = state * jnp.exp(decay)[:, None, None] + (rate[:, None] * x)[:, :, None] * write[:, None]
        return (state * read[:, None]).sum(axis=2), state

    return reference_rows(token, inputs, states)
