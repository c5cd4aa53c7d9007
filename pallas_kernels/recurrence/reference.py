"""A recurrence over rows the obvious way: one token after the other."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from jaxllm.pallas_kernels.recurrence.api import LayerStates

Token = Callable[[tuple[jax.Array, ...], jax.Array], tuple[jax.Array, jax.Array]]
"""Output and state from the inputs of one token and the state before it, in float32."""


def reference_rows(
    token: Token,
    inputs: tuple[jax.Array, ...],
    held: LayerStates,
) -> tuple[jax.Array, tuple[jax.Array]]:
    """Outputs float32 [T, ...], zero for padding, and the states: see `run_rows`. No row has drafts."""
    states, layer, rows, batch, inputs_of_drafts = held
    assert not inputs_of_drafts
    wide = [each.astype(jnp.float32) for each in inputs]

    def scanned(own: jax.Array, number: jax.Array) -> tuple[jax.Array, jax.Array]:
        row = batch.token_rows[number]
        is_token = number < batch.num_tokens
        out, state = token(tuple(each[number] for each in wide), own[row])
        return own.at[row].set(jnp.where(is_token, state, own[row])), jnp.where(is_token, out, 0.0)

    own = rows.read(states, layer).astype(jnp.float32)
    own, out = lax.scan(scanned, own, jnp.arange(len(wide[0]), dtype=jnp.int32))
    return out, (rows.write(states, layer, own),)
