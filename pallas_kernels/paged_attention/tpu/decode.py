"""The decode kernel: every row brings one token. Bound by the bandwidth of memory, so no DMA engine may idle.

Rows are cut into blocks of keys. A producer runs ahead of the computation by all slots but one, from block to block and
from row to row, so that the first pages of the next rows arrive while the present one is computed. A row's own new key
and value come from the step's arrays, the others from its pages, so nothing is read that was not there before.
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
    Scalars,
    cdiv,
    compiler_params,
    div,
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
from jaxllm.pallas_kernels.paged_attention.tpu.decode_softmax import Running, absorb, attended

ROW, BLOCK, STEP = 0, 1, 2
"""Where the producer is: entries of its state in SMEM."""


class Memory(NamedTuple):
    """References of the decode kernel."""

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
    """SMEM [3]."""
    kv: Ref
    """VMEM [slots, J, S, packing, 128]."""
    q: Ref
    """VMEM [row slots, K * F, words, packing, 128]."""
    run: Running
    results: Ref
    """VMEM [K, rows, F * 128] float32: what a row's result is as far as its keys were seen."""
    kv_sems: Ref
    write_sems: Ref
    table_sems: Ref
    q_sems: Ref
    out_sems: Ref


def _when(condition: Any, do: Callable[[], None]) -> None:
    pl.when(condition)(do)


class _Decode:
    """One run of the kernel, as its methods trace it."""

    def __init__(self, scalars: Scalars, memory: Memory, options: Options) -> None:
        self.scalars, self.memory, self.options = scalars, memory, options
        self.rows = scalars.counts[0]
        self.layer = scalars.layer[0]
        self.row_slots = memory.q.shape[0]
        self.ahead = rows_ahead(options.blocks, self.row_slots)

    def run(self) -> None:
        """Attend for all decode rows."""
        memory, slots = self.memory, self.options.blocks.slots
        memory.state[ROW] = 0
        memory.state[BLOCK] = self.first_block(0)
        memory.state[STEP] = 0
        first = jnp.minimum(self.ahead, self.rows)
        lax.fori_loop(0, first, lambda row, _: self.table_copy(row).start(), None)
        for _ in range(slots - 1):
            self.produce()
        lax.fori_loop(0, self.rows, self.row, jnp.int32(0))
        tail = jnp.maximum(self.rows - self.row_slots, 0)
        lax.fori_loop(tail, self.rows, lambda row, _: self.wait_row(row), None)

    # Positions

    def first_key(self, row: Any) -> Any:
        """First key that a row sees."""
        return window_begin(self.scalars, self.scalars.kv_lens[row] - 1, self.options)

    def first_block(self, row: Any) -> Any:
        """First block that a row needs."""
        return div(self.first_key(row), self.options.blocks.keys)

    def fetched(self, row: Any, block: Any) -> tuple[Any, Any]:
        """Range of keys of a block that are in VMEM: from the first page that is seen to the row's end."""
        keys, page_size = self.options.blocks.keys, self.options.dims.page_size
        begin = jnp.maximum(block * keys, div(self.first_key(row), page_size) * page_size)
        return begin, jnp.minimum((block + 1) * keys, self.scalars.kv_lens[row])

    # Copies

    def table_copy(self, row: Any) -> Any:
        memory, slot = self.memory, rem(row, self.row_slots)
        return pltpu.make_async_copy(memory.table.at[row], memory.table_rows.at[slot], memory.table_sems.at[slot])

    def q_copy(self, row: Any) -> Any:
        memory, slot = self.memory, rem(row, self.row_slots)
        return pltpu.make_async_copy(memory.out.at[row], memory.q.at[slot], memory.q_sems.at[slot])

    def out_copy(self, row: Any) -> Any:
        memory, slot = self.memory, rem(row, self.row_slots)
        return pltpu.make_async_copy(memory.q.at[slot], memory.out.at[row], memory.out_sems.at[slot])

    def new_copy(self, row: Any, slot: Any, place: Any) -> Any:
        memory = self.memory
        target = new_tokens(memory.kv, self.options).at[slot, :, place]
        return pltpu.make_async_copy(memory.new.at[row], target, memory.kv_sems.at[slot])

    def write_copy(self, row: Any) -> Any:
        """The new token, from the step's arrays to its page. No read touches its place in the page."""
        memory, page_size, slot = self.memory, self.options.dims.page_size, rem(row, self.row_slots)
        position = self.scalars.kv_lens[row] - 1
        page = memory.table_rows[slot, 0, div(position, page_size)]
        target = new_tokens(memory.cache, self.options).at[self.layer, page, :, rem(position, page_size)]
        return pltpu.make_async_copy(memory.new.at[row], target, memory.write_sems.at[slot])

    def wait_write(self, row: Any) -> None:
        """Wait until the new token of a row is in its page; a wait only counts bytes."""
        token = self.memory.kv.at[0, :, 0]
        pltpu.make_async_copy(token, token, self.memory.write_sems.at[rem(row, self.row_slots)]).wait()

    # Producer

    def produce(self) -> None:
        """Start the copies of the next block, if there is one."""
        state = self.memory.state
        row, block, step = state[ROW], state[BLOCK], state[STEP]
        _when(row < self.rows, lambda: self.start_block(row, block, rem(step, self.options.blocks.slots)))

    def start_block(self, row: Any, block: Any, slot: Any) -> None:
        memory, keys = self.memory, self.options.blocks.keys
        _when(block == self.first_block(row), lambda: self.start_row(row))

        begin, _ = self.fetched(row, block)
        position = self.scalars.kv_lens[row] - 1
        start_pages(
            memory.cache.at[self.layer],
            memory.table_rows.at[rem(row, self.row_slots), 0],
            memory.kv.at[slot],
            memory.kv_sems.at[slot],
            (block * keys, begin, jnp.minimum((block + 1) * keys, position)),
            self.options,
        )
        last = block == div(position, keys)

        _when(last, lambda: self.start_token(row, slot, position - block * keys))
        following = row + 1
        memory.state[ROW] = jnp.where(last, following, row)
        safe = jnp.minimum(following, self.scalars.kv_lens.shape[0] - 1)
        memory.state[BLOCK] = jnp.where(last, self.first_block(safe), block + 1)
        memory.state[STEP] = memory.state[STEP] + 1

    def start_token(self, row: Any, slot: Any, place: Any) -> None:
        """The copies of the row's own key and value."""
        self.new_copy(row, slot, place).start()
        self.write_copy(row).start()

    def start_row(self, row: Any) -> None:
        """The copies of a row that are not keys: its queries, and the page table of a row to come."""
        self.table_copy(row).wait()
        _when(row >= self.row_slots, lambda: self.wait_row(row - self.row_slots))
        self.q_copy(row).start()
        _when(row + self.ahead < self.rows, lambda: self.table_copy(row + self.ahead).start())

    def wait_row(self, row: Any) -> None:
        """Wait until all that a row leaves is where it belongs. Results leave from where the queries came to."""
        self.out_copy(row).wait()
        self.wait_write(row)

    # Consumer

    def row(self, row: Any, step: Any) -> Any:
        end = cdiv(self.scalars.kv_lens[row], self.options.blocks.keys)
        first = self.first_block(row)
        step = lax.fori_loop(first, end, lambda block, step: self.block(row, block, step), step)
        self.finish(row)
        return step

    def block(self, row: Any, block: Any, step: Any) -> Any:
        memory, blocks = self.memory, self.options.blocks
        slot = rem(step, blocks.slots)
        self.produce()
        begin, end = self.fetched(row, block)
        _when(block == self.first_block(row), lambda: self.q_copy(row).wait())
        arrived = memory.kv.at[slot, :, pl.ds(0, end - begin)]
        pltpu.make_async_copy(arrived, arrived, memory.kv_sems.at[slot]).wait()
        base = block * blocks.keys

        first = div(begin - base, blocks.chunk)
        last = cdiv(end - base, blocks.chunk)
        together = self.options.chunks_together
        alone = first + div(last - first, together) * together

        def some(number: Any, _: None) -> None:
            self.chunks(row, slot, base, first + number * together, together)

        lax.fori_loop(0, div(last - first, together), some, None)
        if together > 1:
            lax.fori_loop(alone, last, lambda chunk, _: self.chunks(row, slot, base, chunk, 1), None)
        return step + 1

    def chunks(self, row: Any, slot: Any, base: Any, first: Any, count: int) -> None:
        """All heads against `count` chunks of keys, one after the other; what does not depend on order, at once."""
        options = self.options
        together = options.heads_together
        fresh, score = zip(*[self.chunk(row, slot, base, first + i) for i in range(count)], strict=True)

        def some(number: Any, _: None) -> None:
            heads = [number * together + i for i in range(together)]
            scored = [[head(index) for index in heads] for head in score]
            for begins, parts in zip(fresh, scored, strict=True):
                absorb(self.memory.run, heads[0], begins, parts, options)
            # After each chunk, not once per row: beside a product the sums over lanes cost no time.
            for index in heads:
                self.memory.results[index] = self.attended(index)

        if together == options.dims.num_kv_heads:
            some(0, None)
        else:
            lax.fori_loop(0, options.dims.num_kv_heads // together, some, None)

    def chunk(self, row: Any, slot: Any, base: Any, chunk: Any) -> tuple[Any, Callable[[Any], tuple[Any, Any]]]:
        """Whether a chunk of keys is a row's first, and what gives scores and values of a head against it."""
        options, size = self.options, self.options.blocks.chunk
        start = pl.multiple_of(chunk * size, size)
        position = self.scalars.kv_lens[row] - 1
        low, high = self.first_key(row) - base - start, position - base - start
        q_slot = rem(row, self.row_slots)

        def seen(index: Any) -> Any:
            return (index <= high) & (index >= low) if options.has_window else index <= high

        rows = options.dims.group_rows
        index = lax.broadcasted_iota(jnp.int32, (rows, size), 1)
        visible = seen(index)
        distance = (index - high).astype(jnp.float32) if options.has_slopes else None
        fresh = base + start <= self.first_key(row)

        def head(number: Any) -> tuple[jax.Array, jax.Array]:
            queries = load_queries(self.memory.q, q_slot, number, options)
            queries = scaled(queries, self.scalars.factors[0], options).astype(options.dims.compute_dtype)
            keys, values = load_head(self.memory.kv, slot, number, start, seen, options)
            scores = scores_of(queries, keys, options)
            if distance is not None:
                scores = scores + self.memory.heads[0, number][:rows, :1] * LOG2_E * distance
            return jnp.where(visible, scores, MASKED), values

        return fresh, head

    def attended(self, head: Any) -> jax.Array:
        """The result of a head as far as keys were seen."""
        sink = self.memory.heads[1, head][: self.options.dims.group_rows] if self.options.has_sinks else None
        return attended(self.memory.run, head, self.scalars.factors[1], sink)

    def finish(self, row: Any) -> None:
        """Send the result of a row on its way."""
        for head in range(self.options.dims.num_kv_heads):
            store_queries(self.memory.q, rem(row, self.row_slots), head, self.memory.results[head], self.options)
        self.out_copy(row).start()


def decode_kernel(*refs: Ref, options: Options) -> None:
    """The kernel's body; `decode` gives it its references."""
    table, new, heads, _, _, out, cache = refs[7:14]
    table_rows, state, kv, q, maximum, total, weighted, results, *sems = refs[14:]
    run = Running(maximum, total, weighted)
    memory = Memory(table, new, heads, out, cache, table_rows, state, kv, q, run, results, *sems)
    _Decode(Scalars(*refs[:7]), memory, options).run()


def decode(
    scalars: Scalars,
    table: jax.Array,
    new: jax.Array,
    heads: jax.Array,
    q: jax.Array,
    cache: jax.Array,
    options: Options,
    interpret: Any,
) -> tuple[jax.Array, jax.Array]:
    """Results in place of the queries of all decodes, and the cache with their tokens; shapes as in `Memory`."""
    dims, blocks = options.dims, options.blocks
    slots = row_slots(blocks, table.shape[2])
    rows = dims.group_rows
    hbm = pl.BlockSpec(memory_space=pltpu.HBM)
    return pl.pallas_call(
        lambda *refs: decode_kernel(*refs, options=options),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(1,),
            in_specs=[hbm, hbm, pl.BlockSpec(memory_space=pltpu.VMEM), hbm, hbm],
            out_specs=[hbm, hbm],
            scratch_shapes=[
                pltpu.SMEM((slots, *table.shape[1:]), jnp.int32),
                pltpu.SMEM((3,), jnp.int32),
                pltpu.VMEM((blocks.slots, dims.packs, blocks.keys, *cache.shape[4:]), cache.dtype),
                pltpu.VMEM((slots, *q.shape[1:]), q.dtype),
                pltpu.VMEM((dims.num_kv_heads, rows, 128), jnp.float32),
                pltpu.VMEM((dims.num_kv_heads, rows, 128), jnp.float32),
                *[pltpu.VMEM((dims.num_kv_heads, rows, dims.folds * 128), jnp.float32)] * 2,
                pltpu.SemaphoreType.DMA((blocks.slots,)),
                *[pltpu.SemaphoreType.DMA((slots,))] * 4,
            ],
        ),
        out_shape=[jax.ShapeDtypeStruct(q.shape, q.dtype), jax.ShapeDtypeStruct(cache.shape, cache.dtype)],
        input_output_aliases={10: 0, 11: 1},
        compiler_params=compiler_params(vmem_bytes(blocks, dims)),
        interpret=interpret,
        name="paged_attention_decode",
    )(*scalars, table, new, heads, q, cache)
