"""The prefill kernel: rows of several tokens, in blocks of queries, each against the blocks of keys that it sees.

Bound by the matrix units. All query heads of a KV head and all tokens of a block of queries are the rows of one matrix
product. Blocks of keys are fetched while the ones before are computed, from block to block and from row to row. The
step's own keys and values come from its arrays and go from VMEM to their pages, when the queries beside them are
computed.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jaxllm.pallas_kernels.paged_attention.tpu.blocks import vmem_bytes
from jaxllm.pallas_kernels.paged_attention.tpu.common import (
    LOG2_E,
    MASKED,
    Options,
    Ref,
    Running,
    Scalars,
    absorb,
    attended,
    cdiv,
    compiler_params,
    div,
    each,
    load_head,
    load_queries,
    new_tokens,
    rem,
    row_slots,
    rows_ahead,
    scaled,
    scores_of,
    start_pages,
    store_queries,
    window_begin,
)

ROW, QUERIES, KEYS, KEY_STEP, QUERY_STEP = range(5)
"""Where the producer is: entries of its state in SMEM."""

UNBOUNDED = 1 << 26
"""A window that holds everything, small enough that 16 times it is no overflow."""


class Memory(NamedTuple):
    """References of the prefill kernel."""

    table: Ref
    """HBM [R, 1, W]."""
    new: Ref
    """HBM [T, J, packing, 128], or as words (see `new_tokens`)."""
    heads: Ref
    """VMEM [2, K, rows, 128]: slopes and sinks of the heads."""
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
    run: Running
    kv_sems: Ref
    write_sems: Ref
    table_sems: Ref
    q_sems: Ref
    out_sems: Ref


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


class _Prefill:
    """One run of the kernel, as its methods trace it."""

    def __init__(self, scalars: Scalars, memory: Memory, options: Options) -> None:
        self.scalars, self.memory, self.options = scalars, memory, options
        self.layer = scalars.layer[0]
        self.rows = scalars.counts[1]
        self.row_slots = memory.table_rows.shape[0]
        self.ahead = rows_ahead(options.blocks, self.row_slots)

    def run(self) -> None:
        """Attend for all rows after the decodes."""
        pl.when(self.rows > 0)(self.all_rows)

    def all_rows(self) -> None:
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
        lax.fori_loop(0, self.rows, self.row, (jnp.int32(0), jnp.int32(0)))
        for slot in range(slots):
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
        return Span(row, begin, end, first_key, self.scalars.query_start[place] + index * size, cached)

    def first_block(self, span: Span) -> Any:
        """First block of keys that a block of queries needs."""
        return div(span.first_key, self.options.blocks.keys)

    def fetched(self, span: Span, block: Any) -> tuple[Any, Any]:
        """Range of keys of a block that are in VMEM."""
        keys = self.options.blocks.keys
        return jnp.maximum(block * keys, span.first_key), jnp.minimum((block + 1) * keys, span.end)

    # Copies

    def table_copy(self, row: Any) -> Any:
        memory, slot = self.memory, rem(row, self.row_slots)
        row = self.scalars.order[row]
        return pltpu.make_async_copy(memory.table.at[row], memory.table_rows.at[slot], memory.table_sems.at[slot])

    def q_copy(self, span: Span, place: Any, head: Any) -> Any:
        memory, size = self.memory, span.end - span.begin
        return pltpu.make_async_copy(
            memory.out.at[pl.ds(span.token, size), head],
            memory.q.at[place, head, pl.ds(0, size)],
            memory.q_sems.at[place],
        )

    def out_copy(self, span: Span, place: Any, head: Any) -> Any:
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

        @pl.when(block + 1 == cdiv(span.end, blocks.keys))
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
        place = rem(self.memory.state[QUERY_STEP], 2)
        # Results leave from where the queries came to: those before in this place must be gone.
        self.wait_sent(place)
        each(self.memory.q.shape[1], lambda head: self.q_copy(span, place, head).start())

    def start_keys(self, span: Span, block: Any, slot: Any) -> None:
        """Cached keys come from their pages, the step's own from its arrays."""
        memory, keys = self.memory, self.options.blocks.keys
        begin, end = self.fetched(span, block)
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

        pl.when(begin < end)(lambda: each(self.options.dims.packs, pack))

    # Consumer

    def row(self, row: Any, steps: tuple[Any, Any]) -> tuple[Any, Any]:
        count = cdiv(self.length(row), self.options.blocks.queries)
        return lax.fori_loop(0, count, lambda index, steps: self.queries(row, index, steps), steps)

    def queries(self, row: Any, index: Any, steps: tuple[Any, Any]) -> tuple[Any, Any]:
        """One block of queries."""
        memory, (key_step, query_step) = self.memory, steps
        span, place = self.span(row, index), rem(query_step, 2)
        self.wait_queries(place, span.end - span.begin, memory.q_sems)
        self.scale_queries(place)
        first, end = self.first_block(span), cdiv(span.end, self.options.blocks.keys)
        key_step = lax.fori_loop(first, end, lambda block, step: self.keys(span, block, place, step), key_step)
        self.finish(span, place)
        return key_step, query_step + 1

    def scale_queries(self, place: Any) -> None:
        """Multiply the queries with the factor of their scores: once for all keys."""
        options, factor = self.options, self.scalars.factors[0]

        def head(index: Any, _: None) -> None:
            queries = load_queries(self.memory.q, place, index, options)
            store_queries(self.memory.q, place, index, scaled(queries, factor, options), options)

        lax.fori_loop(0, options.dims.num_kv_heads, head, None)

    def keys(self, span: Span, block: Any, place: Any, step: Any) -> Any:
        """One block of keys."""
        memory, blocks = self.memory, self.options.blocks
        slot, base = rem(step, blocks.slots), block * blocks.keys
        self.produce()
        begin, end = self.fetched(span, block)
        self.wait_keys(slot, end - begin, memory.kv_sems)
        self.write_tokens(span, jnp.maximum(begin, span.begin), end, slot, base)
        first, last = div(begin - base, blocks.chunk), cdiv(end - base, blocks.chunk)
        lax.fori_loop(first, last, lambda chunk, _: self.chunk(span, begin, end, base, chunk, slot, place), None)
        return step + 1

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

    def chunk(self, span: Span, begin: Any, end: Any, base: Any, chunk: Any, slot: Any, place: Any) -> None:
        """All heads against one chunk of keys; masks only where some query does not see some key."""
        size = self.options.blocks.chunk
        start = pl.multiple_of(chunk * size, size)
        first = base + start
        window = jnp.where(self.scalars.window[0] > 0, self.scalars.window[0], UNBOUNDED)
        masked = first + size > span.begin + 1
        if self.options.has_window:
            masked |= first < span.end - window

        def seen(index: Any) -> Any:
            return (index < end - first) & (index >= begin - first)

        def head(index: Any, masked: bool) -> tuple[jax.Array, jax.Array]:
            keys, values = load_head(self.memory.kv, slot, index, start, seen if masked else None, self.options)
            queries = load_queries(self.memory.q, place, index, self.options)
            queries = queries.astype(self.options.dims.compute_dtype)
            scores = scores_of(queries, keys, self.options)
            scores = self.biased(scores, first - span.begin, index)
            return self.visible(scores, first - span.begin, window) if masked else scores, values

        def heads(masked: bool) -> None:
            together = self.options.heads_together

            def some(number: Any, _: None) -> None:
                index = number * together
                absorb(self.memory.run, index, fresh, [head(index + i, masked) for i in range(together)], self.options)

            lax.fori_loop(0, self.options.dims.num_kv_heads // together, some, None)

        fresh = first <= span.first_key
        pl.when(masked)(lambda: heads(True))
        pl.when(jnp.logical_not(masked))(lambda: heads(False))

    def visible(self, scores: jax.Array, offset: Any, window: Any) -> jax.Array:
        """Scores with those of invisible keys masked; `offset` is the first key's position less the first query's.

        Row m is of query m // group: instead of dividing, positions of keys are multiplied with the group.
        """
        group = self.options.dims.group_rows
        row = lax.broadcasted_iota(jnp.int32, scores.shape, 0)
        key = lax.broadcasted_iota(jnp.int32, (1, scores.shape[1]), 1) + offset
        seen = key * group <= row
        if self.options.has_window:
            seen &= (key + window) * group > row
        return jnp.where(seen, scores, MASKED)

    def biased(self, scores: jax.Array, offset: Any, head: Any) -> jax.Array:
        """Scores with ALiBi, where there is any."""
        if not self.options.has_slopes:
            return scores
        row = lax.broadcasted_iota(jnp.int32, scores.shape, 0).astype(jnp.float32)
        query = jnp.floor((row + 0.5) * (1.0 / self.options.dims.group_rows))
        key = (lax.broadcasted_iota(jnp.int32, scores.shape, 1) + offset).astype(jnp.float32)
        return scores + self.per_row(0, head)[:, :1] * LOG2_E * (key - query)

    def per_row(self, which: int, head: Any) -> jax.Array:
        """Slopes (0) or sinks (1) of a KV head for all rows: [queries * group rows, 128]."""
        pattern = self.memory.heads[which, head]
        rows = self.options.blocks.queries * self.options.dims.group_rows
        return jnp.concatenate([pattern] * (rows // pattern.shape[0]), axis=0)

    def finish(self, span: Span, place: Any) -> None:
        """Send the results of a block of queries on their way."""
        options = self.options

        def head(index: Any, _: None) -> None:
            sink = self.per_row(1, index) if options.has_sinks else None
            result = attended(self.memory.run, index, self.scalars.factors[1], sink)
            store_queries(self.memory.q, place, index, result, options)

        lax.fori_loop(0, options.dims.num_kv_heads, head, None)
        each(self.memory.q.shape[1], lambda index: self.out_copy(span, place, index).start())
        self.memory.sent[place] = span.end - span.begin


def prefill_kernel(*refs: Ref, options: Options) -> None:
    """The kernel's body; `prefill` gives it its references."""
    table, new, heads, _, _, out, cache = refs[7:14]
    table_rows, state, written, sent, kv, q, maximum, total, weighted, *sems = refs[14:]
    run = Running(maximum, total, weighted)
    memory = Memory(table, new, heads, out, cache, table_rows, state, written, sent, kv, q, run, *sems)
    _Prefill(Scalars(*refs[:7]), memory, options).run()


def prefill(
    scalars: Scalars,
    table: jax.Array,
    new: jax.Array,
    heads: jax.Array,
    q: jax.Array,
    cache: jax.Array,
    options: Options,
    interpret: Any,
) -> tuple[jax.Array, jax.Array]:
    """Results in place of the queries of all rows after the decodes, and the cache with their tokens."""
    dims, blocks = options.dims, options.blocks
    slots = row_slots(blocks, table.shape[2])
    rows = blocks.queries * dims.group_rows
    hbm = pl.BlockSpec(memory_space=pltpu.HBM)
    return pl.pallas_call(
        lambda *refs: prefill_kernel(*refs, options=options),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(1,),
            in_specs=[hbm, hbm, pl.BlockSpec(memory_space=pltpu.VMEM), hbm, hbm],
            out_specs=[hbm, hbm],
            scratch_shapes=[
                pltpu.SMEM((slots, *table.shape[1:]), jnp.int32),
                pltpu.SMEM((5,), jnp.int32),
                pltpu.SMEM((blocks.slots,), jnp.int32),
                pltpu.SMEM((2,), jnp.int32),
                pltpu.VMEM((blocks.slots, dims.packs, blocks.keys, *cache.shape[4:]), cache.dtype),
                pltpu.VMEM((2, q.shape[1], blocks.queries, *q.shape[2:]), q.dtype),
                pltpu.VMEM((dims.num_kv_heads, rows, 128), jnp.float32),
                pltpu.VMEM((dims.num_kv_heads, rows, 128), jnp.float32),
                pltpu.VMEM((dims.num_kv_heads, rows, dims.folds * 128), jnp.float32),
                pltpu.SemaphoreType.DMA((blocks.slots,)),
                pltpu.SemaphoreType.DMA((blocks.slots,)),
                pltpu.SemaphoreType.DMA((slots,)),
                *[pltpu.SemaphoreType.DMA((2,))] * 2,
            ],
        ),
        out_shape=[jax.ShapeDtypeStruct(q.shape, q.dtype), jax.ShapeDtypeStruct(cache.shape, cache.dtype)],
        input_output_aliases={10: 0, 11: 1},
        compiler_params=compiler_params(vmem_bytes(blocks, dims)),
        interpret=interpret,
        name="paged_attention_prefill",
    )(*scalars, table, new, heads, q, cache)
