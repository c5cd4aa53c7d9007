"""The copies of the kernel: what comes into VMEM ahead of the computation, and what leaves it.

A producer runs ahead of the computation, from block to block and from row to row, so that the latents of the next
blocks arrive while the present one is computed. Pages come as they lie; what is fetched after the row's end is masked.
"""

from functools import partial
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jaxllm.pallas_kernels.latent_attention.tpu.sizes import Blocks, Sizes
from jaxllm.pallas_kernels.latent_attention.tpu.softmax import State
from jaxllm.pallas_kernels.tpu_common.scalars import cdiv, div, rem

TABLES = 4
"""Rows whose page tables are in SMEM; a power of two."""

_TOGETHER = 8
"""Pages that are asked for in one go: the addresses of several are computed at the same time."""

Ref = Any


class Scalars(NamedTuple):
    """Scalar prefetch, in SMEM."""

    layer: Ref
    """int32 [1]."""
    count: Ref
    """int32 [1]: rows."""
    order: Ref
    """int32 [R]: these rows, first."""
    kv_lens: Ref
    query_start: Ref


class Memory(NamedTuple):
    """References of the kernel."""

    table: Ref
    """HBM [R, 1, W]."""
    q: Ref
    """HBM [T, N, S]: queries."""
    cache: Ref
    """HBM [L, P, C, S]."""
    out: Ref
    """HBM [T, N, Z]: results."""
    table_rows: Ref
    """SMEM [TABLES, 1, W]."""
    kv: Ref
    """VMEM [slots, keys, S]."""
    queries: Ref
    """VMEM [slots, queries, N, S]."""
    results: Ref
    """VMEM [2, queries, N, Z]."""
    sent: Ref
    """SMEM [2]: tokens whose results are on their way from there."""
    run: State
    begun: Ref | None
    """VMEM [2, N, 128]: maxima and totals of queries that have seen only the sinks, if there are."""
    kv_sems: Ref
    table_sems: Ref
    q_sems: Ref
    out_sems: Ref


class Place(NamedTuple):
    """A block of keys on its way to a block of queries."""

    row: Any
    index: Any
    """Block of queries of the row."""
    block: Any
    """Block of keys of the row."""
    step: Any
    """Blocks of keys before it, of all rows."""
    item: Any
    """Blocks of queries before its own, of all rows."""


class Copies:
    """Where the producer is, what it starts, and what the computation waits for."""

    def __init__(self, scalars: Scalars, memory: Memory, sizes: Sizes, blocks: Blocks) -> None:
        self.scalars, self.memory, self.sizes, self.blocks = scalars, memory, sizes, blocks
        self.rows, self.layer = scalars.count[0], scalars.layer[0]

    # Places

    def length(self, row: Any) -> Any:
        """Tokens that a row brings."""
        row = self.scalars.order[row]
        return self.scalars.query_start[row + 1] - self.scalars.query_start[row]

    def first_position(self, row: Any, index: Any) -> Any:
        """Position of a block's first query."""
        return self.scalars.kv_lens[self.scalars.order[row]] - self.length(row) + index * self.blocks.queries

    def tokens(self, row: Any, index: Any) -> Any:
        """Tokens of a block of queries."""
        return jnp.minimum(self.length(row) - index * self.blocks.queries, self.blocks.queries)

    def end(self, row: Any, index: Any) -> Any:
        """One after the last key that a block of queries sees."""
        return self.first_position(row, index) + self.tokens(row, index)

    def first_block(self, row: Any, index: Any) -> Any:
        """The first block of keys that some query of a block sees."""
        return div(self._first_seen(row, index), self.blocks.keys) if self.sizes.window else 0

    def _first_seen(self, row: Any, index: Any) -> Any:
        return jnp.maximum(self.first_position(row, index) - (self.sizes.window - 1), 0)

    def _after(self, place: Place) -> Place:
        """The next block of keys, of the same queries or of the next."""
        row = jnp.minimum(place.row, self.rows - 1)
        ends = (place.block + 1) * self.blocks.keys >= self.end(row, place.index)
        last = ends & ((place.index + 1) * self.blocks.queries >= self.length(row))
        index = jnp.where(last, 0, jnp.where(ends, place.index + 1, place.index))
        moves, leaves = ends.astype(jnp.int32), last.astype(jnp.int32)
        first = self.first_block(jnp.minimum(place.row + leaves, self.rows - 1), index)
        block = jnp.where(ends, first, place.block + 1)
        return Place(place.row + leaves, index, block, place.step + 1, place.item + moves)

    # Copies

    def _table_copy(self, row: Any) -> Any:
        memory, slot = self.memory, rem(row, TABLES)
        source = memory.table.at[self.scalars.order[row]]
        return pltpu.make_async_copy(source, memory.table_rows.at[slot], memory.table_sems.at[slot])

    def q_copy(self, row: Any, index: Any, item: Any) -> Any:
        """The copy of a block of queries, which `produce` starts."""
        memory, size, slot = self.memory, self.tokens(row, index), rem(item, self.blocks.slots)
        source = memory.q.at[pl.ds(self._token(row, index), size)]
        return pltpu.make_async_copy(source, memory.queries.at[slot, pl.ds(0, size)], memory.q_sems.at[slot])

    def out_copy(self, row: Any, index: Any, item: Any) -> Any:
        """The copy of a block's results, not started."""
        memory, size, slot = self.memory, self.tokens(row, index), rem(item, 2)
        target = memory.out.at[pl.ds(self._token(row, index), size)]
        return pltpu.make_async_copy(memory.results.at[slot, pl.ds(0, size)], target, memory.out_sems.at[slot])

    def _token(self, row: Any, index: Any) -> Any:
        """Place of a block's first query in the step."""
        return self.scalars.query_start[self.scalars.order[row]] + index * self.blocks.queries

    # Producer

    def begin(self) -> Place:
        """Start the first copies, of as many blocks as may be on their way; returns the next."""
        first = jnp.minimum(TABLES - 1, self.rows)
        lax.fori_loop(0, first, lambda row, _: self._table_copy(row).start(), None)
        zero = jnp.int32(0)
        place = Place(zero, zero, zero + self.first_block(0, 0), zero, zero)
        for _ in range(self.blocks.slots - 1):
            place = self.produce(place)
        return place

    def produce(self, place: Place) -> Place:
        """Start the copies of a block of keys, if there is one; returns the next."""
        pl.when(place.row < self.rows)(lambda: self._start(place))
        return self._after(place)

    def _start(self, place: Place) -> None:
        begins = place.block == self.first_block(place.row, place.index)

        @pl.when(begins & (place.index == 0))
        def _() -> None:
            self._table_copy(place.row).wait()
            ahead = place.row + TABLES - 1
            pl.when(ahead < self.rows)(lambda: self._table_copy(ahead).start())

        pl.when(begins)(lambda: self.q_copy(place.row, place.index, place.item).start())
        self._start_pages(place)

    def _start_pages(self, place: Place) -> None:
        memory, size = self.memory, self.sizes.page_size
        slot, table = rem(place.step, self.blocks.slots), rem(place.row, TABLES)
        first, pages = place.block * (self.blocks.keys // size), self._pages(place.row, place.index, place.block)
        skipped = self._skipped(place.row, place.index, place.block)

        def some(start: Any, count: int) -> None:
            target = memory.kv.at[slot, pl.ds(pl.multiple_of((skipped + start) * size, size), count * size)]
            for i in range(count):
                page = memory.table_rows[table, 0, first + skipped + start + i]
                source = self.page(page)
                pltpu.make_async_copy(source, target.at[pl.ds(i * size, size)], memory.kv_sems.at[slot]).start()

        lax.fori_loop(0, div(pages, _TOGETHER), lambda group, _: some(group * _TOGETHER, _TOGETHER), None)
        count = _TOGETHER // 2
        while count:
            start = div(pages, 2 * count) * (2 * count)
            pl.when((pages & count) > 0)(partial(some, start, count))
            count //= 2

    def page(self, page: Any) -> Any:
        """What is fetched of a page: all of it."""
        return self.memory.cache.at[self.layer, page]

    def _pages(self, row: Any, index: Any, block: Any) -> Any:
        """Pages of a block of keys that are fetched: those before the window are not."""
        end = jnp.minimum(self.end(row, index) - block * self.blocks.keys, self.blocks.keys)
        return cdiv(end, self.sizes.page_size) - self._skipped(row, index, block)

    def _skipped(self, row: Any, index: Any, block: Any) -> Any:
        """Pages of a block of keys before the window."""
        if not self.sizes.window:
            return 0
        return div(jnp.maximum(self._first_seen(row, index) - block * self.blocks.keys, 0), self.sizes.page_size)

    # Waits

    def wait_keys(self, row: Any, index: Any, block: Any, slot: Any) -> None:
        """Wait until the pages of a block of keys are in their slot; a wait only counts bytes."""
        arrived = self.memory.kv.at[slot, pl.ds(0, self._pages(row, index, block) * self.sizes.page_size)]
        pltpu.make_async_copy(arrived, arrived, self.memory.kv_sems.at[slot]).wait()

    def wait_result(self, item: Any) -> None:
        """Wait until the results of an earlier block of queries are where they belong."""
        slot = rem(item, 2)
        sent = self.memory.results.at[slot, pl.ds(0, self.memory.sent[slot])]
        pltpu.make_async_copy(sent, sent, self.memory.out_sems.at[slot]).wait()
