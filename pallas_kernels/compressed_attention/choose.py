"""The choice of the entries that each token sees, by an index of them, in plain XLA operations."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxllm.pallas_kernels.compressed_attention.units import read_units

TOKENS, ENTRIES = 16, 128
"""Of a block."""


class EntryIndex(NamedTuple):
    """What entries are compared with: the score of one is the sum of `weights * relu(query . key * I ** -0.5)`."""

    query: jax.Array
    """[T, M, I] of M index heads, rotated."""
    weights: jax.Array
    """float32 [T, M]"""


def choose_entries(
    index: EntryIndex,
    units: jax.Array,
    keys: jax.Array,
    rows: jax.Array,
    visible: jax.Array,
    num_tokens: jax.Array,
    top: int,
) -> jax.Array:
    """Numbers of the `top` entries with the best scores, of those that a token may see, ascending: int32 [T, top].

    Where there are no more, they are all, and then any others. Of equal ones the first are taken.

    Args:
        index: queries and weights of the tokens.
        units: [S, H] what the cache has.
        keys: int32 [R, E] the first unit of each index key of a row.
        rows: int32 [T] each token's row.
        visible: int32 [T] how many entries it may see, the first ones of its row.
        num_tokens: int32 [], the tokens that are not padding.
        top: entries that are chosen, at most E.
    """
    tokens, size = len(rows), min(TOKENS, len(rows))
    missing = -tokens % size
    keys = jnp.pad(keys, ((0, 0), (0, -keys.shape[1] % ENTRIES)))
    padded = jax.tree.map(lambda each: jnp.pad(each, ((0, missing), *((0, 0),) * (each.ndim - 1))), index)
    rows, visible = jnp.pad(rows, (0, missing)), jnp.pad(visible, (0, missing))
    every = jnp.broadcast_to(jnp.arange(top, dtype=jnp.int32), (size, top))

    def block(number: jax.Array, out: jax.Array) -> jax.Array:
        own, of, seen = (
            jax.tree.map(lambda each: lax.dynamic_slice_in_dim(each, number * size, size), whole)
            for whole in (padded, rows, visible)
        )
        # Short contexts cost nothing: their tokens see every entry.
        chosen = lax.cond(seen.max() <= top, lambda: every, lambda: _best(own, units, keys[of], seen, top))
        return lax.dynamic_update_slice_in_dim(out, chosen, number * size, axis=0)

    out = jnp.zeros((tokens + missing, top), jnp.int32)
    return lax.fori_loop(0, lax.div(num_tokens + (size - 1), jnp.int32(size)), block, out)[:tokens]


def _best(index: EntryIndex, units: jax.Array, keys: jax.Array, visible: jax.Array, top: int) -> jax.Array:
    """Those of a block of tokens [B], whose keys begin at `keys` [B, E]: int32 [B, top]."""
    size = index.query.shape[2]
    count = -(-size // units.shape[1])

    def visit(number: jax.Array, out: jax.Array) -> jax.Array:
        first = lax.dynamic_slice_in_dim(keys, number * ENTRIES, ENTRIES, axis=1)
        stored = read_units(units, first, count)[..., :size].astype(index.query.dtype)
        products = jnp.einsum("bmi,bki->bmk", index.query, stored, preferred_element_type=jnp.float32)
        scores = (jax.nn.relu(products * size**-0.5) * index.weights[:, :, None]).sum(axis=1)
        is_seen = number * ENTRIES + jnp.arange(ENTRIES, dtype=jnp.int32) < visible[:, None]
        return lax.dynamic_update_slice_in_dim(out, jnp.where(is_seen, scores, -jnp.inf), number * ENTRIES, axis=1)

    scores = jnp.full(keys.shape, -jnp.inf, jnp.float32)
    scores = lax.fori_loop(0, lax.div(visible.max() + (ENTRIES - 1), jnp.int32(ENTRIES)), visit, scores)
    # Of equal ones the first: XLA promises it.
    return jnp.sort(lax.top_k(scores, top)[1], axis=-1).astype(jnp.int32)
