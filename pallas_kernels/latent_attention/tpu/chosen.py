"""Which keys a token sees on TPUs, in blocks of tokens, so that nothing has the size of tokens times context."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxllm.pallas_kernels.latent_attention.backend import ChosenKeys, KeyIndex
from jaxllm.pallas_kernels.latent_attention.tpu.index import KEYS, index_scores
from jaxllm.pallas_kernels.latent_attention.tpu.select import MOST_ROWS, select_places
from jaxllm.pallas_kernels.ragged_batch import RaggedBatch
from jaxllm.pallas_kernels.tpu_common.constants import LANES

TOKENS = 64
"""Tokens of a block: their scores are 8 MB for 32,768 keys."""


def choose_by_scores(
    kv_cache: jax.Array,
    layer: jax.Array,
    batch: RaggedBatch,
    index: KeyIndex,
    start: int,
    *,
    checks: bool = False,
    keys: int = KEYS,
    interpret: Any = False,
) -> ChosenKeys:
    """The keys that `index` chooses; in a token of the cache its index key begins at `start`."""
    tokens, page_size = len(batch.positions), kv_cache.shape[2]
    size = min(TOKENS, tokens)

    def block(number: Any, out: jax.Array) -> jax.Array:
        # A last block ends with the last token, and computes some again.
        first = jnp.minimum(number * size, tokens - size)
        own, positions, rows = jax.tree.map(
            lambda each: lax.dynamic_slice_in_dim(each, first, size), (index, batch.positions, batch.token_rows)
        )
        table = batch.page_table[rows]
        places = (table[:, :, None] * page_size + jnp.arange(page_size, dtype=jnp.int32)).reshape(size, -1)

        def best() -> jax.Array:
            where = kv_cache, layer, table, positions, jnp.minimum(batch.num_tokens - first, size), start
            scores = index_scores(own, *where, checks=checks, keys=keys, interpret=interpret)
            # No page is number -1, and no token sees what comes after its own.
            wide = jnp.pad(places, ((0, 0), (0, scores.shape[1] - places.shape[1])))
            if scores.shape[1] <= MOST_ROWS * LANES:
                return select_places(scores, wide, positions, index.top, interpret=interpret)
            seen = lax.broadcasted_iota(jnp.int32, scores.shape, 1) <= positions[:, None]
            # Of equal ones the first: XLA promises it.
            _, chosen = lax.top_k(jnp.where(seen, scores, -jnp.inf), index.top)
            return jnp.take_along_axis(wide, jnp.sort(chosen, axis=-1), axis=1)

        # Short contexts cost nothing; their tokens see every key whether these are scored or not.
        chosen = lax.cond(positions.max() < index.top, lambda: places[:, : index.top], best)
        return lax.dynamic_update_slice_in_dim(out, chosen, first, axis=0)

    out = jnp.zeros((tokens, index.top), jnp.int32)
    if tokens <= TOKENS:
        return ChosenKeys(block(0, out))
    return ChosenKeys(lax.fori_loop(0, lax.div(batch.num_tokens + (TOKENS - 1), jnp.int32(TOKENS)), block, out))
