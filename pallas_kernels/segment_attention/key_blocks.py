"""Which keys a block of queries goes through, where blocks lie on a grid over all tokens."""

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.segment_attention.segments import Segments


def seen_ranges(segments: Segments, tokens: int) -> jax.Array:
    """The first token that each of so many tokens sees, and the one after the last: int32 [tokens, 2].

    Padding sees what the last token sees, so that a block with some of it needs no mask.
    """
    place = jnp.minimum(jnp.arange(tokens, dtype=jnp.int32), jnp.maximum(segments.num_tokens - 1, 0))
    rows = segments.rows[place]
    return jnp.stack([segments.starts[rows], segments.starts[rows + 1]], axis=1)


def key_blocks(ranges: jax.Array, block: int) -> jax.Array:
    """Which blocks of keys each block of queries sees, that see `ranges` int32 [T, 2]: int32 [4, blocks].

    The first, the one after the last, and likewise of those that all of its queries see as a whole.
    """
    low, high = (ranges[:, side].reshape(-1, block) for side in (0, 1))
    first, end = low.min(axis=1) // block, -(-high.max(axis=1) // block)
    inner, outer = -(-low.max(axis=1) // block), high.min(axis=1) // block
    return jnp.stack([first, end, inner, jnp.maximum(inner, outer)])
