"""The state space token by token: the oracle of the other implementations."""

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.paged_attention.ragged import RaggedBatch
from jaxllm.pallas_kernels.recurrence import StateRows
from jaxllm.pallas_kernels.recurrence.reference import reference_rows


def reference_state_space(
    x: jax.Array,
    rate: jax.Array,
    decay: jax.Array,
    write: jax.Array,
    read: jax.Array,
    states: jax.Array,
    layer: int | jax.Array,
    rows: StateRows,
    batch: RaggedBatch,
    *,
    platform: str = "cpu",
) -> tuple[jax.Array, jax.Array]:
    """See `state_space`."""
    times = x.shape[1] // write.shape[1]

    def token(inputs: tuple[jax.Array, ...], state: jax.Array) -> tuple[jax.Array, jax.Array]:
        x, rate, decay, write, read = inputs
        write, read = (jnp.repeat(each, times, axis=0) for each in (write, read))
        state = state * jnp.exp(decay)[:, None, None] + (rate[:, None] * x)[:, :, None] * write[:, None]
        return (state * read[:, None]).sum(axis=2), state

    return reference_rows(token, (x, rate, decay, write, read), states, layer, rows, batch)
