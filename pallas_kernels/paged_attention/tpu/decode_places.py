"""From block to block and chunk to chunk of all decode rows: where the decode kernel's producer and consumer go."""

from typing import Any, NamedTuple

import jax.numpy as jnp

from jaxllm.pallas_kernels.paged_attention.tpu.common import Options, Scalars, window_begin
from jaxllm.pallas_kernels.tpu_common.scalars import div, rem


class Block(NamedTuple):
    """A block of keys, which are fetched together. After those of the last row follow some that do not exist."""

    row: Any
    number: Any
    """Counted from the row's first key, whether or not the row sees it."""
    step: Any
    """Blocks that come before it."""


class Place(NamedTuple):
    """A chunk of a block, whose keys are computed together.

    After those of the last row comes the last one again and again, with no keys left, which changes nothing.
    """

    row: Any
    chunk: Any
    """Counted from the row's first key, whether or not the row sees it."""
    left: Any
    """Keys of the row from the chunk's first on."""
    step: Any
    """Blocks that come before its own."""


class Places:
    """The order of all blocks and chunks that the decode rows need."""

    def __init__(self, scalars: Scalars, options: Options) -> None:
        self.scalars, self.options = scalars, options
        self.rows = scalars.counts[0]

    def num_tokens(self, row: Any) -> Any:
        """Tokens of a row in this step."""
        if self.options.tokens == 1:
            return 1
        return self.scalars.query_start[row + 1] - self.scalars.query_start[row]

    def first_token(self, row: Any) -> Any:
        """A row's first token in this step."""
        return row if self.options.tokens == 1 else self.scalars.query_start[row]

    def first_position(self, row: Any) -> Any:
        """Position of a row's first token in this step."""
        return self.scalars.kv_lens[row] - self.num_tokens(row)

    def first_key(self, row: Any) -> Any:
        """First key that a row sees."""
        return window_begin(self.scalars, self.first_position(row), self.options)

    def first_block(self, row: Any) -> Any:
        """First block that a row needs."""
        return div(self.first_key(row), self.options.blocks.keys)

    def begin(self) -> tuple[Block, Place]:
        """The first block and the first chunk of the first row; none of its keys are left if there is no row."""
        size, zero = self.options.blocks.chunk, jnp.int32(0)
        chunk = div(self.first_key(0), size)
        left = jnp.where(self.rows > 0, self.scalars.kv_lens[0] - chunk * size, 0)
        return Block(zero, self.first_block(0), zero), Place(zero, chunk, left, zero)

    def next_block(self, block: Block) -> Block:
        """The next block, of the same row or of the next."""
        row, other = (jnp.minimum(block.row + i, self.rows - 1) for i in (0, 1))
        ends = (block.number + 1) * self.options.blocks.keys >= self.scalars.kv_lens[row]
        number = jnp.where(ends, self.first_block(other), block.number + 1)
        return Block(jnp.where(ends, block.row + 1, block.row), number, block.step + 1)

    def next_place(self, place: Place) -> Place:
        """The next chunk, of the same row or of the next."""
        blocks, others = self.options.blocks, place.row < self.rows - 1
        other = jnp.where(others, place.row + 1, place.row)
        first = div(self.first_key(other), blocks.chunk)
        ends = place.left <= blocks.chunk
        moves = ends & others
        row = jnp.where(moves, other, place.row)
        chunk = jnp.where(moves, first, jnp.where(ends, place.chunk, place.chunk + 1))
        left = jnp.where(moves, self.scalars.kv_lens[other] - first * blocks.chunk, place.left - blocks.chunk)
        begins = moves | (jnp.logical_not(ends) & (rem(chunk, blocks.keys // blocks.chunk) == 0))
        return Place(row, chunk, left, place.step + begins.astype(jnp.int32))

    def resident_keys(self, block: Block) -> tuple[Any, Any]:
        """Range of keys of a block that are in VMEM: from the first page that is seen to the row's end."""
        keys, page_size = self.options.blocks.keys, self.options.dims.page_size
        begin = jnp.maximum(block.number * keys, div(self.first_key(block.row), page_size) * page_size)
        return begin, jnp.minimum((block.number + 1) * keys, self.scalars.kv_lens[block.row])
