"""The gated delta rule token by token: the oracle of the other implementations."""

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.paged_attention.ragged import RaggedBatch
from jaxllm.pallas_kernels.recurrence import StateRows
from jaxllm.pallas_kernels.recurrence.reference import reference_rows


def reference_gated_delta(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    decay: jax.Array,
    rate: jax.Array,
    states: jax.Array,
    layer: int | jax.Array,
    rows: StateRows,
    batch: RaggedBatch,
    *,
    platform: str = "cpu",
) -> tuple[jax.Array, jax.Array]:
    """See `gated_delta`."""
    times = value.shape[1] // key.shape[1]

    def token(inputs: tuple[jax.Array, ...], state: jax.Array) -> tuple[jax.Array, jax.Array]:
        query, key, value, decay, rate = inputs
        query, key = (jnp.repeat(each, times, axis=0) for each in (query, key))
        state = state * jnp.exp(decay)[:, None, None]
        change = (value - (state * key[:, :, None]).sum(axis=1)) * rate[:, None]
        state = state + key[:, :, None] * change[:, None]
        return (state * query[:, :, None]).sum(axis=1), state

    out, states = reference_rows(token, (query, key, value, decay, rate), states, layer, rows, batch)
    return out.astype(value.dtype), states
