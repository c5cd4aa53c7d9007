"""Low-rank products of rows that are in groups, as the routed experts of a mixture have them.

Each slot has a pair of matrices for every expert. Rows of one expert and slot lie side by side, and are cut into blocks
of the same size: a row's result depends on no other row, and not on how many there are. What no row needs is not read.

Axis letters: R rows, S slots, E experts, Q rank of every slot, P parts of the outputs, L layers.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.tree_util import register_dataclass

ROWS = {"cpu": 8}
"""Rows of a block, by platform."""
OTHER_ROWS = 16
"""The fewest that the matrix units of TPUs and GPUs take of bfloat16."""

BLOCKS = {"cpu": 1}
"""Blocks that are multiplied together. Accelerators start few operations, CPUs copy no matrices."""
OTHER_BLOCKS = 32

_Product = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]
"""Of a block's first row, slot and expert, float32 [rows of a block, out]."""


@register_dataclass
@dataclass(frozen=True)
class GroupedLowRank:
    """The matrices of all slots and experts, see `LowRank`: those of one expert after the other."""

    down: jax.Array
    """[S, E * P * Q, in], or [L, S, E * P * Q, in]."""
    up: jax.Array
    """[S, E * Q, out], or [L, S, E * Q, out]."""
    layer: jax.Array | None
    """int32 [], which of L it is; None where these are of one layer."""
    rank: int = field(metadata={"static": True})
    sizes: tuple[int, ...] = field(metadata={"static": True})
    """Outputs of each of P parts, on one device."""

    def of_block(self, slot: jax.Array, expert: jax.Array) -> tuple[jax.Array, jax.Array]:
        """The matrices of one slot and expert, [P * Q, in] and [Q, out]."""
        down = self._rows(self.down, slot, expert, len(self.sizes) * self.rank)
        return down, self._rows(self.up, slot, expert, self.rank)

    def _rows(self, array: jax.Array, slot: jax.Array, expert: jax.Array, rows: int) -> jax.Array:
        stack = () if self.layer is None else (self.layer,)
        sizes = (*(1 for _ in stack), 1, rows, array.shape[-1])
        return lax.dynamic_slice(array, (*stack, slot, expert * rows, jnp.int32(0)), sizes).reshape(rows, -1)


class RowBlocks(NamedTuple):
    """Rows of one slot and expert each, at most so many as a block has. Those that there are come first."""

    starts: jax.Array
    """int32 [B]: the first row."""
    counts: jax.Array
    """int32 [B]: how many rows follow from there."""
    slots: jax.Array
    """int32 [B]"""
    experts: jax.Array
    """int32 [B]"""
    num_blocks: jax.Array
    """int32 []: how many blocks there are."""
    has_adapter: jax.Array
    """bool [R]"""

    @staticmethod
    def of(slots: jax.Array, experts: jax.Array, count: int, platform: str) -> "RowBlocks":
        """From each row's slot, -1 for none, and expert, both int32 [R]; those from `count` on are none.

        Rows of the same slot and expert must be neighbours.
        """
        size, together = ROWS.get(platform, OTHER_ROWS), BLOCKS.get(platform, OTHER_BLOCKS)
        most = -(-len(slots) // together) * together
        numbers = jnp.arange(len(slots), dtype=jnp.int32)
        is_first = (slots != jnp.roll(slots, 1)) | (experts != jnp.roll(experts, 1)) | (numbers == 0)
        within = numbers - lax.cummax(jnp.where(is_first, numbers, 0))
        has_adapter = (slots >= 0) & (experts < count)
        begins = has_adapter & (within % size == 0)
        block = jnp.cumsum(begins, dtype=jnp.int32) - 1
        place = jnp.where(begins, block, most)

        def of_first(values: jax.Array) -> jax.Array:
            return jnp.zeros(most, jnp.int32).at[place].set(values, mode="drop")

        counts = jnp.zeros(most, jnp.int32).at[jnp.where(has_adapter, block, most)].add(1, mode="drop")
        total = jnp.sum(begins, dtype=jnp.int32)
        return RowBlocks(of_first(numbers), counts, of_first(slots), of_first(experts), total, has_adapter)


def add_grouped_low_rank(
    base: jax.Array, x: jax.Array, matrices: GroupedLowRank, blocks: RowBlocks, platform: str
) -> jax.Array:
    """`base` plus the product of each row with the matrices of its slot and expert.

    Rows that are in no block keep their bits.

    Args:
        base: [R, out].
        x: [R, in].
        matrices: of all slots and experts of a device.
        blocks: which rows have an adapter, and which one.
        platform: JAX's name of what is compiled for.

    Returns:
        [R, out] in the type of `base`; sums are float32.
    """
    size, together = ROWS.get(platform, OTHER_ROWS), BLOCKS.get(platform, OTHER_BLOCKS)

    def add(base: jax.Array) -> jax.Array:
        # A block may begin at the last row.
        rows = jnp.pad(x, ((0, size), (0, 0)))
        start = jnp.zeros((len(rows), base.shape[-1]), jnp.float32)
        put = _put_block if together == 1 else partial(_put_blocks, together)
        body = partial(put, partial(_product, rows, matrices, size), blocks)
        delta = lax.fori_loop(0, -(-blocks.num_blocks // together), body, start)[: len(base)]
        return jnp.where(blocks.has_adapter[:, None], (base.astype(jnp.float32) + delta).astype(base.dtype), base)

    added: jax.Array = lax.cond(blocks.num_blocks > 0, add, lambda base: base, base)
    return added


def _product(
    rows: jax.Array, matrices: GroupedLowRank, size: int, start: jax.Array, slot: jax.Array, expert: jax.Array
) -> jax.Array:
    """Of one block, float32 [size, out]."""
    wide, parts = jnp.float32, len(matrices.sizes)
    own = lax.dynamic_slice(rows, (start, jnp.int32(0)), (size, rows.shape[1]))
    down, up = matrices.of_block(slot, expert)
    hidden = jnp.einsum("ri,ki->rk", own, down, preferred_element_type=wide).astype(rows.dtype)
    hidden = hidden.reshape(size, parts, -1)
    first, found = 0, []
    for part, width in enumerate(matrices.sizes):
        columns = up[:, first : first + width]
        found.append(jnp.einsum("rq,qo->ro", hidden[:, part], columns, preferred_element_type=wide))
        first += width
    return jnp.concatenate(found, axis=-1)


def _put_block(multiply: _Product, blocks: RowBlocks, index: jax.Array, delta: jax.Array) -> jax.Array:
    """Write one block's product to its rows."""
    start = blocks.starts[index]
    product = multiply(start, blocks.slots[index], blocks.experts[index])
    at = (start, jnp.int32(0))
    is_own = jnp.arange(len(product), dtype=jnp.int32)[:, None] < blocks.counts[index]
    kept = jnp.where(is_own, product, lax.dynamic_slice(delta, at, product.shape))
    return lax.dynamic_update_slice(delta, kept, at)


def _put_blocks(together: int, multiply: _Product, blocks: RowBlocks, index: jax.Array, delta: jax.Array) -> jax.Array:
    """Write the products of several blocks to their rows."""

    def own(array: jax.Array) -> jax.Array:
        return lax.dynamic_slice_in_dim(array, index * together, together)

    starts = own(blocks.starts)
    products = jax.vmap(multiply)(starts, own(blocks.slots), own(blocks.experts))
    numbers = jnp.arange(products.shape[1], dtype=jnp.int32)
    places = jnp.where(numbers < own(blocks.counts)[:, None], starts[:, None] + numbers, len(delta))
    return delta.at[places.reshape(-1)].set(products.reshape(-1, delta.shape[-1]), mode="drop")
