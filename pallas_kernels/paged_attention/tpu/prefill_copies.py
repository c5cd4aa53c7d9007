"""The copies of the prefill kernel: what comes into VMEM ahead of the computation, and what leaves it."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jaxllm.pallas_kernels.paged_attention.tpu.common import (
    Options,
    Scalars,
    Seen,
    for_each,
    new_tokens,
    rows_ahead,
    start_pages,
    window_begin,
)
from jaxllm.pallas_kernels.paged_attention.tpu.prefill_softmax import SoftmaxState
from jaxllm.pallas_kernels.tpu_common.constants import Ref
from jaxllm.pallas_kernels.tpu_common.scalars import cdiv, div, rem

ROW, QUERIES, KEYS, KEY_STEP, QUERY_STEP = range(5)
"""Where the producer is: entries of its state in SMEM."""


class Memory(NamedTuple):
    """References of the prefill kernel."""

    table: Ref
    """HBM [R, 1, W]."""
    new: Ref
    """HBM [T, J, packing, 128], or as words (see `new_tokens`)."""
    heads: Ref
    """VMEM [2, K, 1, lanes]: slopes and sinks of the query heads, as often as fills whole tiles."""
    out: Ref
    """HBM [T, K * F, words, packing, 128]: queries, which results replace."""
    cache: Ref
    """HBM [L, P, J, C, packing, 128]."""
    table_rows: Ref
    """SMEM [row slots, 1, W]."""
    state: Ref
    """SMEM [5]."""
    written: Ref
    """SMEM [slots]: tokens on their way from the slot to their pages."""
    sent: Ref
    """SMEM [2]: tokens whose results are on their way from the place."""
    kv: Ref
    """VMEM [slots, J, S, packing, 128]."""
    q: Ref
    """VMEM [2, K * F, queries, words, packing, 128]."""
    run: SoftmaxState
    kv_sems: Ref
    write_sems: Ref
    table_sems: Ref
    q_sems: Ref
    out_sems: Ref
    bounds: Ref | None
    """VMEM [1, rows], where tokens may see later ones: see `prefill_seen`."""


class Span(NamedTuple):
    """A block of queries of one row, in positions."""

    row: Any
    begin: Any
    """Position of its first token."""
    end: Any
    """One after its last."""
    first_key: Any
    """First key that is fetched: the first of a page."""
    token: Any
    """Place of its first token in the step."""
    cached: Any
    """Keys of the row that were in the cache before the step."""
    last_key: Any
    """One after the last key that its queries see: its end, unless some see later tokens."""


class Copies:
    """Positions, copies and the producer that is ahead of the computation by all slots but one."""

    def __init__(self, scalars: Scalars, seen: Seen | None, memory: Memory, options: Options) -> None:
        self.scalars, self.seen, self.memory, self.options = scalars, seen, memory, options
        self.layer = scalars.layer[0]
        self.rows = scalars.counts[1]
        self.row_slots = memory.table_rows.shape[0]
        self.ahead = rows_ahead(options.blocks, self.row_slots)

    def begin(self) -> None:
        """Start the first copies."""
        memory, slots = self.memory, self.options.blocks.slots
        memory.state[ROW] = 0
        memory.state[QUERIES] = 0
        memory.state[KEYS] = self.first_block(self.span(0, 0))
        memory.state[KEY_STEP] = 0
        memory.state[QUERY_STEP] = 0
        for slot in range(slots):
            memory.written[slot] = 0
        for place in range(2):
            memory.sent[place] = 0
        first = jnp.minimum(self.ahead, self.rows)
        lax.fori_loop(0, first, lambda row, _: self.table_copy(row).start(), None)
        for _ in range(slots - 1):
            self.produce()

    def end(self) -> None:
        """Wait for the last copies."""
        for slot in range(self.options.blocks.slots):
            self.wait_write(jnp.int32(slot))
        for place in range(2):
            self.wait_sent(jnp.int32(place))

    # Positions

    # A row is counted among those with tokens that are no decodes; only `order` knows its place in the batch.

    def length(self, row: Any) -> Any:
        """Tokens that a row brings."""
        row = self.scalars.order[row]
        return self.scalars.query_start[row + 1] - self.scalars.query_start[row]

    def span(self, row: Any, index: Any) -> Span:
        """Block of queries `index` of a row."""
        size, page_size = self.options.blocks.queries, self.options.dims.page_size
        length, place = self.length(row), self.scalars.order[row]
        cached = self.scalars.kv_lens[place] - length
        begin = cached + index * size
        end = cached + jnp.minimum((index + 1) * size, length)
        first_key = div(window_begin(self.scalars, begin, self.options), page_size) * page_size
        token = self.scalars.query_start[place] + index * size
        # The later a token, the further it sees.
        last_key = end if self.seen is None else self.seen.until[token + end - begin - 1]
        return Span(row, begin, end, first_key, token, cached, last_key)

    def first_block(self, span: Span) -> Any:
        """First block of keys that a block of queries needs."""
        return div(span.first_key, self.options.blocks.keys)

    def resident_keys(self, span: Span, block: Any) -> tuple[Any, Any]:
        """Range of keys of a block that are in VMEM."""
        keys = self.options.blocks.keys
        return jnp.maximum(block * keys, span.first_key), jnp.minimum((block + 1) * keys, span.last_key)

    # Copies

    def table_copy(self, row: Any) -> Any:
        """The page table of a row."""
        memory, slot = self.memory, rem(row, self.row_slots)
        row = self.scalars.order[row]
        return pltpu.make_async_copy(memory.table.at[row], memory.table_rows.at[slot], memory.table_sems.at[slot])

    def q_copy(self, span: Span, place: Any, head: Any) -> Any:
        """The queries of a block in one KV head (or a fold of it)."""
        memory, size = self.memory, span.end - span.begin
        return pltpu.make_async_copy(
            memory.out.at[pl.ds(span.token, size), head],
            memory.q.at[place, head, pl.ds(0, size)],
            memory.q_sems.at[place],
        )

    def out_copy(self, span: Span, place: Any, head: Any) -> Any:
        """The results in their place."""
        memory, size = self.memory, span.end - span.begin
        return pltpu.make_async_copy(
            memory.q.at[place, head, pl.ds(0, size)],
            memory.out.at[pl.ds(span.token, size), head],
            memory.out_sems.at[place],
        )

    def wait_queries(self, place: Any, size: Any, sems: Ref) -> None:
        """Wait for the queries, or results, of `size` tokens; a wait only counts bytes."""
        tokens = self.memory.q.at[place, :, pl.ds(0, size)]
        pltpu.make_async_copy(tokens, tokens, sems.at[place]).wait()

    def wait_keys(self, slot: Any, size: Any, sems: Ref) -> None:
        """Wait for `size` keys."""
        tokens = self.memory.kv.at[slot, :, pl.ds(0, size)]
        pltpu.make_async_copy(tokens, tokens, sems.at[slot]).wait()

    def wait_write(self, slot: Any) -> None:
        """Wait until no token is on its way from a slot to its page."""
        memory = self.memory

        @pl.when(memory.written[slot] > 0)
        def _() -> None:
            self.wait_keys(slot, memory.written[slot], memory.write_sems)
            memory.written[slot] = 0

    def wait_sent(self, place: Any) -> None:
        """Wait until no result is on its way from a place of queries."""
        memory = self.memory

        @pl.when(memory.sent[place] > 0)
        def _() -> None:
            self.wait_queries(place, memory.sent[place], memory.out_sems)
            memory.sent[place] = 0

    def each_page(self, begin: Any, end: Any, do: Callable[[Any, Any, Any], None]) -> None:
        """For every page that holds positions `begin` to `end`: column of the table, first position, number."""
        page_size = self.options.dims.page_size

        def page(column: Any, _: None) -> None:
            first = jnp.maximum(begin, column * page_size)
            do(column, first, jnp.minimum(end, (column + 1) * page_size) - first)

        lax.fori_loop(div(begin, page_size), jnp.where(begin < end, cdiv(end, page_size), 0), page, None)

    # Producer

    def produce(self) -> None:
        """Start the copies of the next block of keys, if there is one."""
        state = self.memory.state
        pl.when(state[ROW] < self.rows)(self.start_block)

    def start_block(self) -> None:
        """Start the copies of the next block of keys."""
        state = self.memory.state
        row, index, block = state[ROW], state[QUERIES], state[KEYS]
        slot = rem(state[KEY_STEP], self.options.blocks.slots)
        span = self.span(row, index)
        first = block == self.first_block(span)
        pl.when(first & (index == 0))(lambda: self.start_row(row))
        pl.when(first)(lambda: self.start_queries(span))
        self.wait_write(slot)
        self.start_keys(span, block, slot)
        self.advance(span, index, block)

    def advance(self, span: Span, index: Any, block: Any) -> None:
        """Move the producer to the next block of keys, of queries, or row."""
        state, blocks = self.memory.state, self.options.blocks
        state[KEY_STEP] = state[KEY_STEP] + 1
        state[KEYS] = block + 1

        @pl.when(block + 1 == cdiv(span.last_key, blocks.keys))
        def _() -> None:
            state[QUERY_STEP] = state[QUERY_STEP] + 1
            last = (index + 1) * blocks.queries >= self.length(span.row)
            row = jnp.where(last, span.row + 1, span.row)
            following = jnp.where(last, 0, index + 1)
            state[ROW], state[QUERIES] = row, following
            safe = jnp.minimum(row, self.rows - 1)
            state[KEYS] = self.first_block(self.span(safe, following))

    def start_row(self, row: Any) -> None:
        """The page table of a row to come; that of this row must be here."""
        self.table_copy(row).wait()
        pl.when(row + self.ahead < self.rows)(lambda: self.table_copy(row + self.ahead).start())

    def start_queries(self, span: Span) -> None:
        """Start the copies of a block of queries."""
        place = rem(self.memory.state[QUERY_STEP], 2)
        # Results leave from where the queries came to: those before in this place must be gone.
        self.wait_sent(place)
        for_each(self.memory.q.shape[1], lambda head: self.q_copy(span, place, head).start())

    def start_keys(self, span: Span, block: Any, slot: Any) -> None:
        """Cached keys come from their pages, the step's own from its arrays."""
        memory, keys = self.memory, self.options.blocks.keys
        begin, end = self.resident_keys(span, block)
        table_slot = rem(span.row, self.row_slots)

        start_pages(
            memory.cache.at[self.layer],
            memory.table_rows.at[table_slot, 0],
            memory.kv.at[slot],
            memory.kv_sems.at[slot],
            (block * keys, begin, jnp.minimum(end, span.cached)),
            self.options,
        )
        begin = jnp.maximum(begin, span.cached)
        first_token = span.token + begin - span.begin

        target = new_tokens(memory.kv, self.options)

        def pack(index: Any) -> None:
            pltpu.make_async_copy(
                memory.new.at[pl.ds(first_token, end - begin), index],
                target.at[slot, index, pl.ds(begin - block * keys, end - begin)],
                memory.kv_sems.at[slot],
            ).start()

        pl.when(begin < end)(lambda: for_each(self.options.dims.packs, pack))

    # What leaves

    def write_tokens(self, span: Span, begin: Any, end: Any, slot: Any, base: Any) -> None:
        """Start copying the tokens of the block of queries from their slot to their pages."""
        memory, page_size = self.memory, self.options.dims.page_size
        table_slot = rem(span.row, self.row_slots)

        def page(column: Any, first: Any, size: Any) -> None:
            pltpu.make_async_copy(
                memory.kv.at[slot, :, pl.ds(first - base, size)],
                memory.cache.at[
                    self.layer,
                    memory.table_rows[table_slot, 0, column],
                    :,
                    pl.ds(first - column * page_size, size),
                ],
                memory.write_sems.at[slot],
            ).start()

        self.each_page(begin, end, page)
        memory.written[slot] = jnp.maximum(end - begin, 0)

    def send_results(self, span: Span, place: Any) -> None:
        """Start copying the results of a block of queries to where the queries came from."""
        for_each(self.memory.q.shape[1], lambda index: self.out_copy(span, place, index).start())
        self.memory.sent[place] = span.end - span.begin
