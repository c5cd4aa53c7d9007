"""Causal convolution in plain JAX: shifted copies of all tokens, and states for the first tokens of each row."""

import jax
import jax.numpy as jnp


def xla_causal_convolution(
    x: jax.Array,
    states: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    query_start: jax.Array,
    num_drafts: jax.Array | None,
) -> tuple[jax.Array, jax.Array]:
    """See `causal_convolution`."""
    tokens, reach = x.shape[0], weight.shape[1] - 1
    place = jnp.arange(tokens, dtype=jnp.int32)
    # Padding is of the last row, far after its state: its values mean nothing.
    row = jnp.searchsorted(query_start[1:-1], place, side="right", method="compare_all").astype(jnp.int32)
    inside = place - query_start[row]
    wide = weight.astype(jnp.float32)
    out = x.astype(jnp.float32) * wide[:, reach]
    for back in range(1, reach + 1):
        shifted = jnp.pad(x, ((back, 0), (0, 0)))[:tokens]
        # Those in the row's state are no further back than its first entry.
        kept = states.at[row, jnp.clip(reach + inside - back, 0, reach - 1)].get(mode="promise_in_bounds")
        before = jnp.where((inside >= back)[:, None], shifted, kept.astype(x.dtype))
        out = out + before.astype(jnp.float32) * wide[:, reach - back]
    if bias is not None:
        out = out + bias.astype(jnp.float32)
    lengths = query_start[1:] - query_start[:-1]
    return out.astype(x.dtype), _next_states(
        x, states, query_start, lengths if num_drafts is None else lengths - num_drafts
    )


def _next_states(x: jax.Array, states: jax.Array, query_start: jax.Array, lengths: jax.Array) -> jax.Array:
    """The rows' states after the first `lengths` (int32 [R]) of their tokens `x`."""
    reach = states.shape[1]
    entry = jnp.arange(reach, dtype=jnp.int32)
    lengths = lengths[:, None]
    # Entry i is token `length - reach + i` of those that are new, or, before them, entry `length + i` of the old ones.
    place = lengths - reach + entry
    new = x.at[jnp.clip(query_start[:-1, None] + place, 0, len(x) - 1)].get(mode="promise_in_bounds")
    old = jnp.take_along_axis(states, jnp.clip(lengths + entry, 0, reach - 1)[:, :, None], axis=1)
    return jnp.where((place >= 0)[:, :, None], new.astype(states.dtype), old)
