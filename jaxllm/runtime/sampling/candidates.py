"""The largest few of every group of a row: nearly always all that matters of it, in a sixteenth of the space."""

import jax.numpy as jnp
from jax import Array, lax

from jaxllm.runtime.sampling.blocks import BLOCK, to_blocks

KEPT = 4
"""Values kept of each group."""

STEP = 16
"""Blocks from one value of a group to the next: neighbours, which are often alike, share no group."""

CANDIDATES = KEPT * STEP * BLOCK
"""Values kept of a row."""

_UNROLLED = 8
"""Values of a group that one trip of the loop takes."""


def candidates(values: Array) -> tuple[Array, Array]:
    """The largest `KEPT` of each group of `values` float32 [R, V], and what none of the others exceeds.

    The values are at least 0, and there are at least 2 * CANDIDATES in a row. Returns [R, CANDIDATES], in no useful
    order, and [R].
    """
    blocks = to_blocks(values, 0.0)
    trips = blocks.shape[1] // (_UNROLLED * STEP)

    def trip(index: Array, best: tuple[Array, ...]) -> tuple[Array, ...]:
        return _insert(lax.dynamic_slice_in_dim(blocks, index * _UNROLLED * STEP, _UNROLLED * STEP, axis=1), best)

    empty = (jnp.zeros((values.shape[0], STEP, BLOCK), values.dtype),) * KEPT
    best = _insert(blocks[:, trips * _UNROLLED * STEP :], lax.fori_loop(0, trips, trip, empty))
    return jnp.concatenate(best, axis=1).reshape(values.shape[0], -1), jnp.max(best[-1], axis=(1, 2))


def _insert(blocks: Array, best: tuple[Array, ...]) -> tuple[Array, ...]:
    """`best` with the values of `blocks` [R, n, BLOCK] in their places, and the least fallen out.

    No comparison decides about code, so that all groups are lanes of the same few instructions.
    """
    found = list(best)
    for first in range(0, blocks.shape[1], STEP):
        left = blocks[:, first : first + STEP]
        left = jnp.pad(left, ((0, 0), (0, STEP - left.shape[1]), (0, 0)))
        for place, largest in enumerate(found):
            found[place], left = jnp.maximum(largest, left), jnp.minimum(largest, left)
    return tuple(found)
