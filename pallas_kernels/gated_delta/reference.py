"""The gated delta rule token by token: the oracle of the other implementations."""

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.gated_delta.inputs import GatedDeltaInputs
from jaxllm.pallas_kernels.recurrence import LayerStates
from jaxllm.pallas_kernels.recurrence.reference import reference_rows


def reference_gated_delta(
    inputs: GatedDeltaInputs, states: LayerStates, *, platform: str = "cpu"
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """See `gated_delta`."""
    times, dtype = inputs.value.shape[1] // inputs.key.shape[1], inputs.value.dtype

    def token(inputs: tuple[jax.Array, ...], state: jax.Array) -> tuple[jax.Array, jax.Array]:
        query, key, value, decay, rate = inputs
        query, key = (jnp.repeat(each, times, axis=0) for each in (query, key))
        # By head, or by element of its key.
        state = state * jnp.exp(decay).reshape(len(state), -1)[:, :, None]
        change = (value - (state * key[:, :, None]).sum(axis=1)) * rate[:, None]
        state = state + key[:, :, None] * change[:, None]
        return (state * query[:, :, None]).sum(axis=1), state

    out, after = reference_rows(token, inputs, states)
    return out.astype(dtype), after
