"""The decode kernel: every row brings one token, or a few. Bound by the bandwidth of memory, so no DMA engine may idle.

Rows are cut into blocks of keys, which are fetched, and those into chunks, which are computed. A producer runs ahead of
the computation, from block to block and from row to row, so that the first pages of the next rows arrive while the
present one is computed. The computation takes the next few chunks at a time, whatever rows they belong to: what one of
them waits for is hidden by the others. A row's own new key and value come from the step's arrays, the others from its
pages, so nothing is read that was not there before.

Where rows may have a few tokens (`Options.tokens`), as decodes with drafts have, those of a row are computed together:
its keys are read once, and its queries are rows of one product, as if the heads of a group were so many times as many.
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
    Options,
    Scalars,
    clear,
    load_head,
    load_queries,
    new_tokens,
    row_slots,
    rows_ahead,
    scaled,
    scores_of,
    start_pages,
    store_queries,
)
from jaxllm.pallas_kernels.paged_attention.tpu.decode_places import Block, Place, Places
from jaxllm.pallas_kernels.paged_attention.tpu.decode_softmax import SoftmaxState, State, absorb, attended
from jaxllm.pallas_kernels.tpu_common.compiler import compiler_params
from jaxllm.pallas_kernels.tpu_common.constants import LOG2_E, MASKED, Ref
from jaxllm.pallas_kernels.tpu_common.scalars import div, rem


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
    kv: Ref
    """VMEM [slots, J, S, packing, 128]."""
    q: Ref
    """VMEM [row slots, K * F, (tokens,) words, packing, 128]."""
    results: Ref
    """As `q`: what the results of rows are as far as their keys were seen."""
    run: SoftmaxState
    kv_sems: Ref
    write_sem: Ref
    """Write semaphore of all rows."""
    table_sems: Ref
    q_sems: Ref
    out_sems: Ref


class Chunk(NamedTuple):
    """The scores of one place, and how its row continues."""

    fresh: Any
    """Whether the row's softmax begins here."""
    scored: Callable[[Any], tuple[jax.Array, jax.Array]]
    """Scores and values of a head."""


def _run_when(condition: Any, do: Callable[[], None]) -> None:
    pl.when(condition)(do)


class _Decode:
    """One run of the kernel, as its methods trace it."""

    def __init__(self, scalars: Scalars, memory: Memory, options: Options) -> None:
        self.scalars, self.memory, self.options = scalars, memory, options
        self.rows = scalars.counts[0]
        self.places = Places(scalars, options)
        self.layer = scalars.layer[0]
        self.row_slots = memory.q.shape[0]
        self.ahead = rows_ahead(options.blocks, self.row_slots)

    def run(self) -> None:
        """Attend for all decode rows."""
        first = jnp.minimum(self.ahead, self.rows)
        lax.fori_loop(0, first, lambda row, _: self.table_copy(row).start(), None)
        block, place = self.places.begin()
        # Blocks that are computed together lie in slots of their own; the others are asked for before.
        lead = jnp.where(self.rows > 0, self.options.blocks.slots - self.options.chunks_together, 0)
        fetch = lax.fori_loop(0, lead, lambda _, fetch: self.produce(fetch), block)
        lax.while_loop(lambda at: at[0].left > 0, lambda at: self.some(*at), (place, block, fetch))
        tail = jnp.maximum(self.rows - self.row_slots, 0)
        lax.fori_loop(tail, self.rows, lambda row, _: self.wait_out(row), None)
        _run_when(self.rows > 0, self.wait_writes)

    # Copies

    def table_copy(self, row: Any) -> Any:
        memory, slot = self.memory, rem(row, self.row_slots)
        return pltpu.make_async_copy(memory.table.at[row], memory.table_rows.at[slot], memory.table_sems.at[slot])

    def for_tokens(self, row: Any, do: Callable[[Any], None]) -> None:
        """For the number of each token of a row, from 0 on."""
        if self.options.tokens == 1:
            do(0)
        else:
            lax.fori_loop(0, self.places.num_tokens(row), lambda index, _: do(index), None)

    def token(self, row: Any, index: Any) -> Any:
        """The number of a row's token in the step."""
        return row if self.options.tokens == 1 else self.places.first_token(row) + index

    def in_slot(self, buffer: Ref, slot: Any, index: Any) -> Ref:
        """A token's queries or results in VMEM."""
        return buffer.at[slot] if self.options.tokens == 1 else buffer.at[slot, :, index]

    def q_copy(self, row: Any, index: Any) -> Any:
        memory, slot = self.memory, rem(row, self.row_slots)
        source, target = memory.out.at[self.token(row, index)], self.in_slot(memory.q, slot, index)
        return pltpu.make_async_copy(source, target, memory.q_sems.at[slot])

    def out_copy(self, row: Any, index: Any) -> Any:
        memory, slot = self.memory, rem(row, self.row_slots)
        source, target = self.in_slot(memory.results, slot, index), memory.out.at[self.token(row, index)]
        return pltpu.make_async_copy(source, target, memory.out_sems.at[slot])

    def wait_out(self, row: Any) -> None:
        """Wait until a row's results are where its queries were."""
        self.for_tokens(row, lambda index: self.out_copy(row, index).wait())

    def new_copy(self, token: Any, slot: Any, place: Any) -> Any:
        memory = self.memory
        target = new_tokens(memory.kv, self.options).at[slot, :, place]
        return pltpu.make_async_copy(memory.new.at[token], target, memory.kv_sems.at[slot])

    def write_copy(self, row: Any, token: Any, position: Any) -> Any:
        """A new token, from the step's arrays to its page. No read touches its place in the page."""
        memory, page_size, slot = self.memory, self.options.dims.page_size, rem(row, self.row_slots)
        page = memory.table_rows[slot, 0, div(position, page_size)]
        target = new_tokens(memory.cache, self.options).at[self.layer, page, :, rem(position, page_size)]
        return pltpu.make_async_copy(memory.new.at[token], target, memory.write_sem)

    def wait_writes(self) -> None:
        """Wait until all new tokens are in their pages; a wait only counts bytes."""
        tokens = self.memory.new.at[pl.ds(0, self.places.first_token(self.rows))]
        pltpu.make_async_copy(tokens, tokens, self.memory.write_sem).wait()

    # Producer

    def produce(self, block: Block) -> Block:
        """Start the copies of a block, if there is one; returns the next."""
        _run_when(block.row < self.rows, lambda: self.start_block(block))
        return self.places.next_block(block)

    def start_block(self, block: Block) -> None:
        memory, keys, row = self.memory, self.options.blocks.keys, block.row
        slot = rem(block.step, self.options.blocks.slots)
        _run_when(block.number == self.places.first_block(row), lambda: self.start_row(row))

        base, (begin, end) = block.number * keys, self.places.resident_keys(block)
        position = self.places.first_position(row)
        # Before the pages, which leave the scalar unit no time to wait for its own loads.
        self.for_tokens(row, lambda index: self.start_if_within(row, index, slot, base))
        start_pages(
            memory.cache.at[self.layer],
            memory.table_rows.at[rem(row, self.row_slots), 0],
            memory.kv.at[slot],
            memory.kv_sems.at[slot],
            (base, begin, jnp.minimum(end, position)),
            self.options,
        )

    def start_if_within(self, row: Any, index: Any, slot: Any, base: Any) -> None:
        """Start the copies of a new token of the row, if it is in the block of keys from `base` on."""
        end, position = base + self.options.blocks.keys, self.places.first_position(row)
        if self.options.tokens > 1:
            position = position + index
        within = position < end if self.options.tokens == 1 else (position >= base) & (position < end)
        _run_when(within, lambda: self.start_token(row, self.token(row, index), slot, position))

    def start_token(self, row: Any, token: Any, slot: Any, position: Any) -> None:
        """The copies of a new key and value of the row."""
        self.new_copy(token, slot, rem(position, self.options.blocks.keys)).start()
        self.write_copy(row, token, position).start()

    def start_row(self, row: Any) -> None:
        """The copies of a row that are not keys: its queries, and the page table of a row to come."""
        self.table_copy(row).wait()
        _run_when(row >= self.row_slots, lambda: self.wait_out(row - self.row_slots))
        self.for_tokens(row, lambda index: self.q_copy(row, index).start())
        _run_when(row + self.ahead < self.rows, lambda: self.table_copy(row + self.ahead).start())

    # Consumer

    def some(self, place: Place, block: Block, fetch: Block) -> tuple[Place, Block, Block]:
        """Attend to the next few chunks; returns the next one, and the next blocks to wait for and to ask for."""
        places = []
        for _ in range(self.options.chunks_together):
            places.append(place)
            place = self.places.next_place(place)

        def turn(_: Any, blocks: tuple[Block, Block]) -> tuple[Block, Block]:
            fetch = self.produce(blocks[1])
            return self.arrive(blocks[0]), fetch

        block, fetch = lax.fori_loop(block.step, places[-1].step + 1, turn, (block, fetch))
        self.attend(places)
        for done in places:
            ends = (done.left > 0) & (done.left <= self.options.blocks.chunk)
            _run_when(ends, self.out_start(done.row))
        return place, block, fetch

    def out_start(self, row: Any) -> Callable[[], None]:
        """Starts the copies of a row's results."""
        if self.options.tokens == 1:
            start: Callable[[], None] = self.out_copy(row, 0).start
            return start
        return lambda: self.for_tokens(row, lambda index: self.out_copy(row, index).start())

    def wait_queries(self, row: Any) -> None:
        """Wait for a row's queries."""
        self.for_tokens(row, lambda index: self.q_copy(row, index).wait())

    def arrive(self, block: Block) -> Block:
        """Wait for a block of keys, and for a row's queries with its first; returns the next block."""
        memory, slot = self.memory, rem(block.step, self.options.blocks.slots)
        begin, end = self.places.resident_keys(block)
        arrived = memory.kv.at[slot, :, pl.ds(0, end - begin)]
        _run_when(block.number == self.places.first_block(block.row), lambda: self.wait_queries(block.row))
        pltpu.make_async_copy(arrived, arrived, memory.kv_sems.at[slot]).wait()
        self.clear_ends(block, slot, end)
        return self.places.next_block(block)

    def clear_ends(self, block: Block, slot: Any, end: Any) -> None:
        """Zero what the chunks of a block hold alongside the keys that the row sees.

        Its weight is 0, but memory that no DMA has filled may hold what times 0 is no number. Most chunks are full: to
        mask the values of all of them would be half of what the vector unit does.
        """
        size, base = self.options.blocks.chunk, block.number * self.options.blocks.keys
        first = self.places.first_key(block.row)

        def clear_beside(key: Any, valid: Callable[[Any], Any]) -> None:
            clear(self.memory.kv, slot, pl.multiple_of(key - rem(key, size) - base, size), valid, self.options)

        _run_when(rem(end, size) > 0, lambda: clear_beside(end, lambda index: index < rem(end, size)))
        if self.options.has_window:
            partial = (first > base) & (rem(first, size) > 0)
            _run_when(partial, lambda: clear_beside(first, lambda index: index >= rem(first, size)))

    def attend(self, places: list[Place]) -> None:
        """All heads against the chunks of keys at `places`."""
        options, memory = self.options, self.memory
        together = options.heads_together
        chunks = [self.chunk(place) for place in places]

        def some(number: Any, _: None) -> None:
            heads = [number * together + i for i in range(together)]
            scored = [[chunk.scored(head) for chunk in chunks] for head in heads]
            # All is read before anything is written, so that the compiler may compute all at the same time.
            states = [memory.run.load(head) for head in heads]
            results = []
            for i, head in enumerate(heads):
                for chunk, parts in zip(chunks, scored[i], strict=True):
                    states[i] = absorb(states[i], chunk.fresh, *parts, options)
                    # After each chunk, not once per row: alongside a product the sums over lanes cost no time.
                    results.append(self.attended(head, states[i]))
            for head, state in zip(heads, states, strict=True):
                memory.run.store(head, state)
                for place in places:
                    slot = rem(place.row, self.row_slots)
                    store_queries(memory.results, slot, head, results.pop(0), options)

        if together == options.dims.num_kv_heads:
            some(0, None)
        else:
            lax.fori_loop(0, options.dims.num_kv_heads // together, some, None)

    def chunk(self, place: Place) -> Chunk:
        """How a row attends to the chunk of keys at `place`."""
        options, blocks, row = self.options, self.options.blocks, place.row
        slot, q_slot = rem(place.step, blocks.slots), rem(row, self.row_slots)
        start = pl.multiple_of(rem(place.chunk, blocks.keys // blocks.chunk) * blocks.chunk, blocks.chunk)
        first, high = self.places.first_key(row) - place.chunk * blocks.chunk, place.left - 1
        rows, low = options.tokens * options.dims.group_rows, first
        index = lax.broadcasted_iota(jnp.int32, (rows, blocks.chunk), 1)
        if options.tokens > 1:
            # Each token sees one key more than the one before it.
            number = lax.broadcasted_iota(jnp.int32, (rows, blocks.chunk), 0)
            begins = [token * options.dims.group_rows for token in range(1, options.tokens)]
            token = sum((number >= begin).astype(jnp.int32) for begin in begins)
            high = high - (self.places.num_tokens(row) - 1) + token
            if options.has_window:
                low = self.window_ends(row) + token - place.chunk * blocks.chunk
        visible = (index <= high) & (index >= low) if options.has_window else index <= high
        distance = (index - high).astype(jnp.float32) if options.has_slopes else None

        def scored(head: Any) -> tuple[jax.Array, jax.Array]:
            queries = load_queries(self.memory.q, q_slot, head, options)
            queries = scaled(queries, self.scalars.factors[0], options).astype(options.dims.compute_dtype)
            keys, values = load_head(self.memory.kv, slot, head, start, None, options)
            scores = scores_of(queries, keys, options)
            if distance is not None:
                scores = scores + self.memory.heads[0, head][:rows, :1] * LOG2_E * distance
            return jnp.where(visible, scores, MASKED), values

        return Chunk((first >= 0) & (place.left > 0), scored)

    def window_ends(self, row: Any) -> Any:
        """First key that the window of a row's first token leaves, perhaps negative."""
        window = self.scalars.window[0]
        return jnp.where(window > 0, self.places.first_position(row) - window + 1, -self.options.tokens)

    def attended(self, head: Any, state: State) -> jax.Array:
        """The result of a head as far as keys were seen."""
        rows = self.options.tokens * self.options.dims.group_rows
        sink = self.memory.heads[1, head][:rows] if self.options.has_sinks else None
        return attended(state, self.scalars.factors[1], sink)


def decode_kernel(*refs: Ref, options: Options) -> None:
    """The kernel's body; `decode` gives it its references."""
    table, new, heads, _, _, out, cache = refs[7:14]
    table_rows, kv, q, results, *run = refs[14:21]
    memory = Memory(table, new, heads, out, cache, table_rows, kv, q, results, SoftmaxState(*run), *refs[21:])
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
    rows = options.tokens * dims.group_rows
    queries = q.shape[1:] if options.tokens == 1 else (q.shape[1], options.tokens, *q.shape[2:])
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
                pltpu.VMEM((blocks.slots, dims.packs, blocks.keys, *cache.shape[4:]), cache.dtype),
                *[pltpu.VMEM((slots, *queries), q.dtype)] * 2,
                *[pltpu.VMEM((dims.num_kv_heads, rows, 128), jnp.float32)] * 2,
                pltpu.VMEM((dims.num_kv_heads, rows, dims.folds * 128), jnp.float32),
                pltpu.SemaphoreType.DMA((blocks.slots,)),
                pltpu.SemaphoreType.DMA,
                *[pltpu.SemaphoreType.DMA((slots,))] * 3,
            ],
        ),
        out_shape=[jax.ShapeDtypeStruct(q.shape, q.dtype), jax.ShapeDtypeStruct(cache.shape, cache.dtype)],
        input_output_aliases={10: 0, 11: 1},
        compiler_params=compiler_params(vmem_bytes(blocks, dims, options.tokens), checks=options.checks),
        interpret=interpret,
        name="paged_attention_decode",
    )(*scalars, table, new, heads, q, cache)
