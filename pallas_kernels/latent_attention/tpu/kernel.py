"""The kernel: rows of queries in blocks, each against the blocks of latents that it sees.

All heads of all tokens of a block of queries are the rows of one matrix product, and a decode is a block of one token.
`Copies` brings the latents of the next blocks while the present one is computed.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jaxllm.pallas_kernels.latent_attention.tpu.copies import TABLES, Copies, Memory, Place, Ref, Scalars
from jaxllm.pallas_kernels.latent_attention.tpu.sizes import Blocks, Sizes
from jaxllm.pallas_kernels.latent_attention.tpu.softmax import (
    State,
    absorb,
    attended,
    fresh,
    scores_of,
    visible,
)
from jaxllm.pallas_kernels.tpu_common.compiler import compiler_params
from jaxllm.pallas_kernels.tpu_common.constants import LANES
from jaxllm.pallas_kernels.tpu_common.scalars import cdiv, rem


class Attention:
    """One run of the kernel, as its methods trace it."""

    def __init__(self, copies: Copies) -> None:
        self.copies = copies
        self.memory, self.sizes, self.blocks = copies.memory, copies.sizes, copies.blocks

    def run(self) -> None:
        """Attend for all rows."""
        pl.when(self.copies.rows > 0)(self.all_rows)

    def all_rows(self) -> None:
        """Attend for the rows that there are."""
        # A weight of 0 times what no copy has filled may be no number.
        self.memory.kv[...] = jnp.zeros_like(self.memory.kv)
        fetch, zero = self.copies.begin(), jnp.int32(0)
        _, item, _ = lax.fori_loop(0, self.copies.rows, self.row, (zero, zero, fetch))
        for back in (2, 1):
            pl.when(item >= back)(partial(self.copies.wait_result, item - back))

    def row(self, row: Any, carry: tuple[Any, Any, Place]) -> tuple[Any, Any, Place]:
        """All blocks of queries of a row."""
        count = cdiv(self.copies.length(row), self.blocks.queries)
        return lax.fori_loop(0, count, lambda index, carry: self.item(row, index, *carry), carry)

    def item(self, row: Any, index: Any, step: Any, item: Any, fetch: Place) -> tuple[Any, Any, Place]:
        """One block of queries."""
        self.copies.q_copy(row, index, item).wait()
        count = self.blocks.queries * self.sizes.heads
        for ref, value in zip(self.memory.run, fresh(count, self.sizes, self.memory.begun), strict=True):
            ref[...] = value
        first, blocks = self.copies.first_block(row, index), cdiv(self.copies.end(row, index), self.blocks.keys)

        def keys(block: Any, carry: tuple[Any, Place]) -> tuple[Any, Place]:
            step, fetch = carry
            fetch = self.copies.produce(fetch)
            self.keys(row, index, block, step, item)
            return step + 1, fetch

        step, fetch = lax.fori_loop(first, blocks, keys, (step, fetch))
        pl.when(item >= 2)(lambda: self.copies.wait_result(item - 2))
        result = attended(State(*(ref[...] for ref in self.memory.run))).astype(self.sizes.dtype)
        slot = rem(item, 2)
        self.memory.results[slot] = result.reshape(self.blocks.queries, self.sizes.heads, self.sizes.value)
        self.memory.sent[slot] = self.copies.tokens(row, index)
        self.copies.out_copy(row, index, item).start()
        return step, item + 1, fetch

    def keys(self, row: Any, index: Any, block: Any, step: Any, item: Any) -> None:
        """One block of keys: masks only where some query does not see some key."""
        slot = rem(step, self.blocks.slots)
        self.copies.wait_keys(row, index, block, slot)
        before = self.copies.first_position(row, index) - block * self.blocks.keys
        whole = before >= self.blocks.keys - 1
        if self.sizes.window:
            whole &= before + self.blocks.queries <= self.sizes.window
        pl.when(whole)(lambda: self.attend(slot, rem(item, self.blocks.slots), before, masked=False))
        pl.when(jnp.logical_not(whole))(lambda: self.attend(slot, rem(item, self.blocks.slots), before, masked=True))

    def attend(self, slot: Any, q_slot: Any, before: Any, *, masked: bool) -> None:
        """All rows against the chunks of a slot; the first query sees the first `before` + 1 keys of the slot."""
        memory, sizes, chunk = self.memory, self.sizes, self.blocks.chunk
        queries = memory.queries[q_slot].reshape(-1, sizes.token)
        state = State(*(ref[...] for ref in memory.run))
        chunks = [memory.kv[slot, start : start + chunk] for start in range(0, self.blocks.keys, chunk)]
        # All products of queries come first, so that the compiler may compute them alongside the softmax.
        scored = [scores_of(queries, keys, sizes) for keys in chunks]
        for number, (scores, keys) in enumerate(zip(scored, chunks, strict=True)):
            seen = visible(scores, before - number * chunk, sizes) if masked else scores
            state = absorb(state, seen, keys[:, : sizes.value], sizes)
        for ref, value in zip(memory.run, state, strict=True):
            ref[...] = value


def latent_kernel(*refs: Ref, sizes: Sizes, blocks: Blocks, has_sinks: bool) -> None:
    """The kernel's body; `attend_rows` gives it its references."""
    count = len(Scalars._fields)
    table, q, cache, _, *begun, out = refs[count : count + 5 + has_sinks]
    table_rows, kv, queries, results, sent, *rest = refs[count + 5 + has_sinks :]
    own = begun[0] if has_sinks else None
    memory = Memory(table, q, cache, out, table_rows, kv, queries, results, sent, State(*rest[:3]), own, *rest[3:])
    Attention(Copies(Scalars(*refs[:count]), memory, sizes, blocks)).run()


def attend_rows(
    scalars: Scalars,
    table: jax.Array,
    q: jax.Array,
    cache: jax.Array,
    out: jax.Array,
    begun: jax.Array | None,
    sizes: Sizes,
    blocks: Blocks,
    *,
    name: str,
    vmem_bytes: int,
    checks: bool,
    interpret: Any,
) -> jax.Array:
    """`out` with the results of some rows; shapes as in `Memory`."""
    rows, sinks = blocks.queries * sizes.heads, () if begun is None else (begun,)
    hbm = pl.BlockSpec(memory_space=pltpu.HBM)
    attended: jax.Array = pl.pallas_call(
        partial(latent_kernel, sizes=sizes, blocks=blocks, has_sinks=len(sinks) > 0),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(1,),
            in_specs=[*[hbm] * 4, *[pl.BlockSpec(memory_space=pltpu.VMEM)] * len(sinks)],
            out_specs=hbm,
            scratch_shapes=[
                pltpu.SMEM((TABLES, *table.shape[1:]), jnp.int32),
                pltpu.VMEM((blocks.slots, blocks.keys, sizes.token), cache.dtype),
                pltpu.VMEM((blocks.slots, blocks.queries, sizes.heads, sizes.token), q.dtype),
                pltpu.VMEM((2, blocks.queries, sizes.heads, sizes.value), q.dtype),
                pltpu.SMEM((2,), jnp.int32),
                *[pltpu.VMEM((rows, LANES), jnp.float32)] * 2,
                pltpu.VMEM((rows, sizes.value), jnp.float32),
                pltpu.SemaphoreType.DMA((blocks.slots,)),
                pltpu.SemaphoreType.DMA((TABLES,)),
                pltpu.SemaphoreType.DMA((blocks.slots,)),
                pltpu.SemaphoreType.DMA((2,)),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct(out.shape, out.dtype),
        input_output_aliases={len(scalars) + 3: 0},
        compiler_params=compiler_params(vmem_bytes, checks=checks),
        interpret=interpret,
        name=name,
    )(*scalars, table, q, cache, out, *sinks)
    return attended
