"""Scores of an index of keys on TPUs: every token against the index keys of its request, read once from their pages.

A token is a row of its own for `Copies`, which brings the index keys of the next pages, and of them alone, while the
present ones are multiplied. All index heads are the rows of a product; what they give is weighted and summed in
registers, so that only scores leave the kernel.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jaxllm.pallas_kernels.latent_attention.backend import KeyIndex
from jaxllm.pallas_kernels.latent_attention.tpu.copies import TABLES, Copies, Memory, Place, Ref, Scalars
from jaxllm.pallas_kernels.latent_attention.tpu.sizes import Blocks, Sizes, whole_rows
from jaxllm.pallas_kernels.latent_attention.tpu.softmax import State, scores_of
from jaxllm.pallas_kernels.tpu_common.compiler import compiler_params
from jaxllm.pallas_kernels.tpu_common.constants import LANES
from jaxllm.pallas_kernels.tpu_common.scalars import cdiv, rem
from jaxllm.pallas_kernels.tpu_common.target import target

KEYS, SLOTS = 2048, 4
"""Index keys of a block: half a mebibyte in bfloat16, which hides what a DMA takes; and blocks in VMEM."""

HEADS_MULTIPLE = 16
"""Rows of a tile in bfloat16."""


class _IndexCopies(Copies):
    """Copies of index keys: of each page the lanes from `start` on."""

    def __init__(self, scalars: Scalars, memory: Memory, sizes: Sizes, blocks: Blocks, start: int) -> None:
        super().__init__(scalars, memory, sizes, blocks)
        self.start = start

    def page(self, page: Any) -> Any:
        """See `Copies`."""
        return self.memory.cache.at[self.layer, page, :, pl.ds(self.start, self.sizes.token)]


class _Scores:
    """One run of the kernel, as its methods trace it."""

    def __init__(self, copies: _IndexCopies) -> None:
        self.copies = copies
        self.memory, self.sizes, self.blocks = copies.memory, copies.sizes, copies.blocks

    def run(self) -> None:
        """Score for all tokens."""
        pl.when(self.copies.rows > 0)(self.all_tokens)

    def all_tokens(self) -> None:
        fetch = self.copies.begin()
        lax.fori_loop(0, self.copies.rows, self.token, (jnp.int32(0), fetch))
        for back in (2, 1):
            pl.when(self.copies.rows >= back)(partial(self.copies.wait_result, self.copies.rows - back))

    def token(self, token: Any, carry: tuple[Any, Place]) -> tuple[Any, Place]:
        """One token against all index keys up to its own."""
        self.copies.q_copy(token, 0, token).wait()
        pl.when(token >= 2)(lambda: self.copies.wait_result(token - 2))
        blocks = cdiv(self.copies.end(token, 0), self.blocks.keys)

        def keys(block: Any, carry: tuple[Any, Place]) -> tuple[Any, Place]:
            step, fetch = carry
            fetch = self.copies.produce(fetch)
            self.keys(token, block, step)
            return step + 1, fetch

        carry = lax.fori_loop(0, blocks, keys, carry)
        self.memory.sent[rem(token, 2)] = 1
        self.copies.out_copy(token, 0, token).start()
        return carry

    def keys(self, token: Any, block: Any, step: Any) -> None:
        """One block of index keys: 128 of them are a row of scores. Scores of keys after the token mean nothing."""
        memory, sizes = self.memory, self.sizes
        slot, heads = rem(step, self.blocks.slots), sizes.heads
        self.copies.wait_keys(token, 0, block, slot)
        both = memory.queries.at[rem(token, self.blocks.slots), 0]
        queries, weights = both[:heads].astype(sizes.dtype), both[heads:]
        rows = self.blocks.keys // LANES
        products = scores_of(queries, memory.kv[slot], sizes)
        for first in range(0, rows, 8):
            parts = (products[:, row * LANES : (row + 1) * LANES] for row in range(first, first + 8))
            scores = [jnp.sum(jnp.maximum(part, 0.0) * weights, axis=0, keepdims=True) for part in parts]
            place = pl.ds(pl.multiple_of(block * rows + first, 8), 8)
            memory.results[rem(token, 2), 0, place] = jnp.concatenate(scores, axis=0)


def _kernel(*refs: Ref, sizes: Sizes, blocks: Blocks, start: int) -> None:
    """The kernel's body; `index_scores` gives it its references."""
    count = len(Scalars._fields)
    table, q, cache, out, table_rows, kv, queries, results, sent, *semaphores = refs[count:]
    no_state = State(None, None, None)
    memory = Memory(table, q, cache, out, table_rows, kv, queries, results, sent, no_state, None, *semaphores)
    _Scores(_IndexCopies(Scalars(*refs[:count]), memory, sizes, blocks, start)).run()


def index_scores(
    index: KeyIndex,
    kv_cache: jax.Array,
    layer: jax.Array,
    table: jax.Array,
    positions: jax.Array,
    count: jax.Array,
    start: int,
    *,
    checks: bool = False,
    keys: int = KEYS,
    interpret: Any = False,
) -> jax.Array:
    """Scores float32 [B, K] of the keys of the first `count` of tokens [B]; those after a token's own mean nothing.

    Args:
        index: [B, ...]; its own keys are in the cache already.
        kv_cache: [L, P, C, S]; index keys begin at `start`, a multiple of 128, and fill whole rows of lanes.
        layer: int32 [].
        table: int32 [B, W] pages of each token's request.
        positions: int32 [B].
        count: int32 [].
        start: where in a token of the cache its index key begins.
        checks: see `LatentOptions`.
        keys: index keys of a block: a multiple of 1024 and of pages.
        interpret: for tests.
    """
    tokens, num_heads, size = index.query.shape
    page_size, heads = kv_cache.shape[2], -(-num_heads // HEADS_MULTIPLE) * HEADS_MULTIPLE
    sizes = Sizes(heads, whole_rows(size), LANES, page_size, kv_cache.dtype.name)
    blocks = Blocks(keys, LANES, SLOTS)
    # Weights of heads lie under the queries: one copy brings both.
    wide = jnp.pad(index.query.astype(jnp.float32), ((0, 0), (0, heads - num_heads), (0, sizes.token - size)))
    weights = jnp.pad(index.weights * size**-0.5, ((0, 0), (0, heads - num_heads)))
    weights = jnp.broadcast_to(weights[..., None], (tokens, heads, sizes.token))
    rows = -(-table.shape[1] * page_size // keys) * keys // LANES
    order = jnp.arange(tokens + 1, dtype=jnp.int32)
    scalars = Scalars(layer.reshape(1), count.reshape(1), order[:tokens], positions + 1, order)
    hbm = pl.BlockSpec(memory_space=pltpu.HBM)
    scores: jax.Array = pl.pallas_call(
        partial(_kernel, sizes=sizes, blocks=blocks, start=start),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(1,),
            in_specs=[hbm] * 3,
            out_specs=hbm,
            scratch_shapes=[
                pltpu.SMEM((TABLES, 1, table.shape[1]), jnp.int32),
                pltpu.VMEM((SLOTS, keys, sizes.token), kv_cache.dtype),
                pltpu.VMEM((SLOTS, 1, 2 * heads, sizes.token), jnp.float32),
                pltpu.VMEM((2, 1, rows, LANES), jnp.float32),
                pltpu.SMEM((2,), jnp.int32),
                pltpu.SemaphoreType.DMA((SLOTS,)),
                pltpu.SemaphoreType.DMA((TABLES,)),
                pltpu.SemaphoreType.DMA((SLOTS,)),
                pltpu.SemaphoreType.DMA((2,)),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((tokens, rows, LANES), jnp.float32),
        compiler_params=compiler_params(_vmem_bytes(keys, rows, sizes), checks=checks),
        interpret=interpret,
        name="latent_attention_index",
    )(*scalars, table[:, None], jnp.concatenate([wide, weights], axis=1), kv_cache)
    return scores.reshape(tokens, -1)


def _vmem_bytes(keys: int, rows: int, sizes: Sizes) -> int:
    """The room that the kernel may use in VMEM."""
    kv = SLOTS * keys * sizes.token * sizes.bytes_each
    results = 2 * rows * LANES * 4
    return min(kv + results + SLOTS * 2 * sizes.heads * sizes.token * 4 + (8 << 20), target().vmem_bytes)
