"""The selective scan token by token: the oracle of the other implementations."""

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.paged_attention.ragged import RaggedBatch
from jaxllm.pallas_kernels.recurrence import StateRows
from jaxllm.pallas_kernels.recurrence.reference import reference_rows


def reference_selective_scan(
    x: jax.Array,
    rate: jax.Array,
    write: jax.Array,
    read: jax.Array,
    log_decay: jax.Array,
    states: jax.Array,
    layer: int | jax.Array,
    rows: StateRows,
    batch: RaggedBatch,
    *,
    platform: str = "cpu",
) -> tuple[jax.Array, jax.Array]:
    """See `selective_scan`."""

    def token(inputs: tuple[jax.Array, ...], state: jax.Array) -> tuple[jax.Array, jax.Array]:
        x, rate, write, read = inputs
        state = state * jnp.exp(rate * log_decay.T) + write[:, None] * (rate * x)
        return (state * read[:, None]).sum(axis=0), state

    return reference_rows(token, (x, rate, write, read), states, layer, rows, batch)
