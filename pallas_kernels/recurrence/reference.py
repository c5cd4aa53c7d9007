"""A recurrence over rows the obvious way: one token after the other."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from jaxllm.pallas_kernels.paged_attention.ragged import RaggedBatch
from jaxllm.pallas_kernels.recurrence.rows import StateRows

Token = Callable[[tuple[jax.Array, ...], jax.Array], tuple[jax.Array, jax.Array]]
"""Output and state from the inputs of one token and the state before it, in float32."""


def reference_rows(
    token: Token,
    inputs: tuple[jax.Array, ...],
    states: jax.Array,
    layer: int | jax.Array,
    rows: StateRows,
    batch: RaggedBatch,
) -> tuple[jax.Array, jax.Array]:
    """Outputs float32 [T, ...], zero for padding, and the states: see `run_rows`."""
    wide = [each.astype(jnp.float32) for each in inputs]

    def scanned(held: jax.Array, number: jax.Array) -> tuple[jax.Array, jax.Array]:
        row = batch.token_rows[number]
        is_token = number < batch.num_tokens
        out, state = token(tuple(each[number] for each in wide), held[row])
        return held.at[row].set(jnp.where(is_token, state, held[row])), jnp.where(is_token, out, 0.0)

    held = rows.read(states, layer).astype(jnp.float32)
    held, out = lax.scan(scanned, held, jnp.arange(len(wide[0]), dtype=jnp.int32))
    return out, rows.write(states, layer, held)
