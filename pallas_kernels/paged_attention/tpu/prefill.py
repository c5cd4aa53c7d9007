"""The prefill kernel: rows of several tokens, in blocks of queries, each against the blocks of keys that it sees.

Bound by the matrix units. All query heads of a KV head and all tokens of a block of queries are the rows of one matrix
product. Blocks of keys are fetched while the ones before are computed, from block to block and from row to row. The
step's own keys and values come from its arrays and go from VMEM to their pages, when the queries alongside them are
computed.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jaxllm.pallas_kernels.paged_attention.tpu.blocks import vmem_bytes
from jaxllm.pallas_kernels.paged_attention.tpu.common import (
    Options,
    Scalars,
    Seen,
    load_queries,
    row_slots,
    scaled,
    store_queries,
)
from jaxllm.pallas_kernels.paged_attention.tpu.prefill_copies import Copies, Memory, Span
from jaxllm.pallas_kernels.paged_attention.tpu.prefill_scores import Chunk, Scores, per_row
from jaxllm.pallas_kernels.paged_attention.tpu.prefill_seen import find_bounds
from jaxllm.pallas_kernels.paged_attention.tpu.prefill_softmax import Scored, SoftmaxState, absorb, attended, settle
from jaxllm.pallas_kernels.tpu_common.compiler import compiler_params
from jaxllm.pallas_kernels.tpu_common.constants import LANES, SUBLANES, Ref
from jaxllm.pallas_kernels.tpu_common.scalars import cdiv, div, rem

UNBOUNDED = 1 << 26
"""A window that holds everything, small enough that 16 times it is no overflow."""


class _Prefill:
    """One run of the kernel, as its methods trace it."""

    def __init__(self, scalars: Scalars, seen: Seen | None, memory: Memory, options: Options) -> None:
        self.scalars, self.seen, self.memory, self.options = scalars, seen, memory, options
        self.copies = Copies(scalars, seen, memory, options)

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
        self.replace_queries(place, lambda head: self.scaled(place, head))
        if self.seen is not None:
            find_bounds(self.seen, self.memory.bounds, span, self.options)
        first, end = copies.first_block(span), cdiv(span.last_key, self.options.blocks.keys)
        key_step = lax.fori_loop(first, end, lambda block, step: self.keys(span, block, place, step), key_step)
        self.replace_queries(place, self.result)
        copies.send_results(span, place)
        return key_step, query_step + 1

    def replace_queries(self, place: Any, values: Callable[[Any], jax.Array]) -> None:
        """Put `values` of each KV head, [tokens * group rows, F * 128], in the place of its queries.

        The results of several heads are computed before any is stored, so that the compiler may do so at the same time.
        """
        options, together = self.options, self.options.heads_together

        def some(number: Any, _: None) -> None:
            heads = [number * together + i for i in range(together)]
            for head, computed in zip(heads, [values(head) for head in heads], strict=True):
                store_queries(self.memory.q, place, head, computed, options)

        lax.fori_loop(0, options.dims.num_kv_heads // together, some, None)

    def scaled(self, place: Any, head: Any) -> jax.Array:
        """The queries of a head times the factor of their scores: once for all keys."""
        return scaled(load_queries(self.memory.q, place, head, self.options), self.scalars.factors[0], self.options)

    def result(self, head: Any) -> jax.Array:
        """The result of a head, with queries along sublanes again."""
        options, run = self.options, self.memory.run
        sink = per_row(self.memory.heads, 1, head, run.total.shape[2]) if options.has_sinks else None
        return attended(run, head, self.scalars.factors[1], sink).astype(options.dims.q_dtype).T

    def keys(self, span: Span, block: Any, place: Any, step: Any) -> Any:
        """One block of keys."""
        copies, blocks = self.copies, self.options.blocks
        slot, base = rem(step, blocks.slots), block * blocks.keys
        copies.produce()
        begin, end = copies.resident_keys(span, block)
        copies.wait_keys(slot, end - begin, self.memory.kv_sems)
        own_end = end if self.seen is None else jnp.minimum(end, span.end)
        copies.write_tokens(span, jnp.maximum(begin, span.begin), own_end, slot, base)
        first, last = div(begin - base, blocks.chunk), cdiv(end - base, blocks.chunk)
        lax.fori_loop(first, last, lambda index, _: self.chunk(span, (begin, end), base, index, slot, place), None)
        return step + 1

    def chunk(self, span: Span, fetched: tuple[Any, Any], base: Any, index: Any, slot: Any, place: Any) -> None:
        """All heads against one chunk of keys; masks only where some query does not see some key."""
        options, run, window = self.options, self.memory.run, self.scalars.window[0]
        start = pl.multiple_of(index * options.blocks.chunk, options.blocks.chunk)
        window = jnp.where(window > 0, window, UNBOUNDED)
        chunk = Chunk(slot, start, place, base + start, fetched, (span.begin, span.end), window)
        scores, fresh = Scores(self.memory, chunk, options), chunk.first <= span.first_key
        real = (span.end - span.begin) * options.dims.group_rows

        def heads(scored: Callable[[Any, int], list[list[Scored]]]) -> None:
            together = options.heads_together

            def some(number: Any, _: None) -> None:
                first = number * together
                absorb(run, first, fresh, real, scored(first, together), options)

            lax.fori_loop(0, options.dims.num_kv_heads // together, some, None)

        masked = scores.masked
        pl.when(jnp.logical_not(masked))(lambda: heads(partial(scores.whole, masked=False)))
        if scores.has_halves:
            pl.when(scores.diagonal)(lambda: heads(scores.halves))
            masked &= jnp.logical_not(scores.diagonal)
        pl.when(masked)(lambda: heads(partial(scores.whole, masked=True)))
        settle(run, lambda head: scores.whole(head, 1, masked=True)[0][0], options)


def prefill_kernel(*refs: Ref, options: Options) -> None:
    """The kernel's body; `prefill` gives it its references."""
    scalars, refs = Scalars(*refs[:7]), refs[7:]
    seen = Seen(*refs[:2]) if options.has_spans else None
    table, new, heads, _, _, out, cache, *scratch = refs[2:] if options.has_spans else refs
    table_rows, state, written, sent, kv, q, *rest = scratch
    run, sems, bounds = SoftmaxState(*rest[:4]), rest[4:9], rest[9] if options.has_spans else None
    copied = (table, new, heads, out, cache, table_rows, state, written, sent, kv, q)
    memory = Memory(*copied, run, sems[0], sems[1], sems[2], sems[3], sems[4], bounds)
    _Prefill(scalars, seen, memory, options).run()


def prefill(
    scalars: Scalars,
    seen: Seen | None,
    table: jax.Array,
    new: jax.Array,
    heads: jax.Array,
    q: jax.Array,
    cache: jax.Array,
    options: Options,
    interpret: Any,
) -> tuple[jax.Array, jax.Array]:
    """Results in place of the queries of all rows after the decodes, and the cache with their tokens."""
    dims, blocks, prefetched = options.dims, options.blocks, (*scalars, *(seen or ()))
    slots = row_slots(blocks, table.shape[2])
    rows = blocks.queries * dims.group_rows
    hbm = pl.BlockSpec(memory_space=pltpu.HBM)
    return pl.pallas_call(
        lambda *refs: prefill_kernel(*refs, options=options),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(prefetched),
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
                *[pltpu.VMEM((1, rows), jnp.int32)] * options.has_spans,
            ],
        ),
        out_shape=[jax.ShapeDtypeStruct(q.shape, q.dtype), jax.ShapeDtypeStruct(cache.shape, cache.dtype)],
        input_output_aliases={len(prefetched) + 3: 0, len(prefetched) + 4: 1},
        compiler_params=compiler_params(vmem_bytes(blocks, dims), checks=options.checks),
        interpret=interpret,
        name="paged_attention_prefill",
    )(*prefetched, table, new, heads, q, cache)
