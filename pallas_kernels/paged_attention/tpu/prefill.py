"""The prefill kernel: rows of several tokens, in blocks of queries, each against the blocks of keys that it sees.

Bound by the matrix units. All query heads of a KV head and all tokens of a block of queries are the rows of one matrix
product. Blocks of keys are fetched while the ones before are computed, from block to block and from row to row. The
step's own keys and values come from its arrays and go from VMEM to their pages, when the queries beside them are
computed.
"""

from collections.abc import Callable
from typing import Any

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
    rem,
    row_slots,
    scaled,
    scores_of,
    store_queries,
)
from jaxllm.pallas_kernels.paged_attention.tpu.layout import LANES
from jaxllm.pallas_kernels.paged_attention.tpu.prefill_copies import Copies, Memory, Span
from jaxllm.pallas_kernels.paged_attention.tpu.prefill_softmax import (
    SUBLANES,
    Running,
    Scored,
    absorb,
    attended,
    settle,
)

UNBOUNDED = 1 << 26
"""A window that holds everything, small enough that 16 times it is no overflow."""


class _Prefill:
    """One run of the kernel, as its methods trace it."""

    def __init__(self, scalars: Scalars, memory: Memory, options: Options) -> None:
        self.scalars, self.memory, self.options = scalars, memory, options
        self.copies = Copies(scalars, memory, options)

    def run(self) -> None:
        """Attend for all rows after the decodes."""
        pl.when(self.copies.rows > 0)(self.all_rows)

    def all_rows(self) -> None:
        self.copies.begin()
        lax.fori_loop(0, self.copies.rows, self.row, (jnp.int32(0), jnp.int32(0)))
        self.copies.end()

    def row(self, row: Any, steps: tuple[Any, Any]) -> tuple[Any, Any]:
        count = cdiv(self.copies.length(row), self.options.blocks.queries)
        return lax.fori_loop(0, count, lambda index, steps: self.queries(row, index, steps), steps)

    def queries(self, row: Any, index: Any, steps: tuple[Any, Any]) -> tuple[Any, Any]:
        """One block of queries."""
        copies, (key_step, query_step) = self.copies, steps
        span, place = copies.span(row, index), rem(query_step, 2)
        copies.wait_queries(place, span.end - span.begin, self.memory.q_sems)
        self.scale_queries(place)
        first, end = copies.first_block(span), cdiv(span.end, self.options.blocks.keys)
        key_step = lax.fori_loop(first, end, lambda block, step: self.keys(span, block, place, step), key_step)
        self.finish(place)
        copies.send_results(span, place)
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
        copies, blocks = self.copies, self.options.blocks
        slot, base = rem(step, blocks.slots), block * blocks.keys
        copies.produce()
        begin, end = copies.fetched(span, block)
        copies.wait_keys(slot, end - begin, self.memory.kv_sems)
        copies.write_tokens(span, jnp.maximum(begin, span.begin), end, slot, base)
        first, last = div(begin - base, blocks.chunk), cdiv(end - base, blocks.chunk)
        lax.fori_loop(first, last, lambda chunk, _: self.chunk(span, begin, end, base, chunk, slot, place), None)
        return step + 1

    def chunk(self, span: Span, begin: Any, end: Any, base: Any, chunk: Any, slot: Any, place: Any) -> None:
        """All heads against one chunk of keys; masks only where some query does not see some key."""
        options, size, run = self.options, self.options.blocks.chunk, self.memory.run
        start = pl.multiple_of(chunk * size, size)
        first = base + start
        fresh = first <= span.first_key
        real = (span.end - span.begin) * options.dims.group_rows
        window = jnp.where(self.scalars.window[0] > 0, self.scalars.window[0], UNBOUNDED)
        masked = first + size > span.begin + 1
        if options.has_window:
            masked |= first < span.end - window

        def seen(index: Any) -> Any:
            return (index < end - first) & (index >= begin - first)

        def scored(index: Any, masked: bool) -> Scored:
            keys, values = load_head(self.memory.kv, slot, index, start, seen if masked else None, options)
            queries = load_queries(self.memory.q, place, index, options).astype(options.dims.compute_dtype)
            scores = self.biased(scores_of(keys, queries, options), first - span.begin, index)
            return self.visible(scores, first - span.begin, window) if masked else scores, values

        def halves(index: Any) -> list[Scored]:
            """As `scored` on the diagonal, where half of the queries see none of half the keys."""
            keys, values = load_head(self.memory.kv, slot, index, start, seen, options)
            queries = load_queries(self.memory.q, place, index, options).astype(options.dims.compute_dtype)
            middle, parts = size // 2, []
            for key in (0, middle):
                scores = scores_of(keys[key : key + middle], queries[key * options.dims.group_rows :], options)
                scores = self.biased(scores, jnp.int32(0), index)
                scores = self.visible(scores, jnp.int32(0), window, near=middle * options.dims.group_rows)
                parts.append((scores, values[key : key + middle]))
            return parts

        def heads(scored: Callable[[Any], list[Scored]]) -> None:
            together = options.heads_together

            def some(number: Any, _: None) -> None:
                index = number * together
                absorb(run, index, fresh, real, [scored(index + i) for i in range(together)], options)

            lax.fori_loop(0, options.dims.num_kv_heads // together, some, None)

        pl.when(jnp.logical_not(masked))(lambda: heads(lambda index: [scored(index, masked=False)]))
        if size == options.blocks.queries and size % 256 == 0 and not options.has_window:
            diagonal = first == span.begin
            pl.when(diagonal)(lambda: heads(halves))
            masked &= jnp.logical_not(diagonal)
        pl.when(masked)(lambda: heads(lambda index: [scored(index, masked=True)]))
        settle(run, real, lambda index: scored(index, masked=True), options)

    def visible(self, scores: jax.Array, offset: Any, window: Any, near: int | None = None) -> jax.Array:
        """Scores [keys, rows] with those of invisible keys masked; `offset`: the first key less the first query.

        Row m is of query m // group: instead of dividing, positions of keys are multiplied with the group. Rows from
        `near` on are taken to see all.
        """
        if near is not None and near < scores.shape[1]:
            return jnp.concatenate([self.visible(scores[:, :near], offset, window), scores[:, near:]], axis=1)
        group = self.options.dims.group_rows
        key = lax.broadcasted_iota(jnp.int32, (scores.shape[0], 1), 0) + offset
        row = lax.broadcasted_iota(jnp.int32, (1, scores.shape[1]), 1)
        seen = key * group <= row
        if self.options.has_window:
            seen &= (key + window) * group > row
        return jnp.where(seen, scores, MASKED)

    def biased(self, scores: jax.Array, offset: Any, head: Any) -> jax.Array:
        """Scores with ALiBi, where there is any."""
        if not self.options.has_slopes:
            return scores
        row = lax.broadcasted_iota(jnp.int32, (1, scores.shape[1]), 1).astype(jnp.float32)
        query = jnp.floor((row + 0.5) * (1.0 / self.options.dims.group_rows))
        key = (lax.broadcasted_iota(jnp.int32, (scores.shape[0], 1), 0) + offset).astype(jnp.float32)
        return scores + self.per_row(0, head, scores.shape[1]) * LOG2_E * (key - query)

    def per_row(self, which: int, head: Any, rows: int) -> jax.Array:
        """Slopes (0) or sinks (1) of a KV head for `rows` rows: [1, rows]."""
        pattern = self.memory.heads[which, head]
        return jnp.concatenate([pattern] * (rows // pattern.shape[1]), axis=1)

    def finish(self, place: Any) -> None:
        """Put the results of a block of queries into the place of the queries."""
        options, run = self.options, self.memory.run

        def head(index: Any, _: None) -> None:
            sink = self.per_row(1, index, run.total.shape[2]) if options.has_sinks else None
            result = attended(run, index, self.scalars.factors[1], sink)
            store_queries(self.memory.q, place, index, result.astype(options.dims.q_dtype).T, options)

        lax.fori_loop(0, options.dims.num_kv_heads, head, None)


def prefill_kernel(*refs: Ref, options: Options) -> None:
    """The kernel's body; `prefill` gives it its references."""
    table, new, heads, _, _, out, cache = refs[7:14]
    table_rows, state, written, sent, kv, q, *rest = refs[14:]
    run, sems = Running(*rest[:4]), rest[4:]
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
                pltpu.VMEM((dims.num_kv_heads, SUBLANES, rows), jnp.float32),
                pltpu.VMEM((dims.num_kv_heads, SUBLANES, rows), jnp.float32),
                pltpu.VMEM((dims.num_kv_heads, dims.folds * LANES, rows), jnp.float32),
                pltpu.VMEM((dims.num_kv_heads, 1, LANES), jnp.int32),
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
