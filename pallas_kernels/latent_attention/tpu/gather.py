"""Attention to chosen keys on TPUs: the kernel of attention to all, whose pages are single keys of the cache.

A copy cannot bring half of a 32-bit word, and in 16 bits two tokens share each word: it brings both, and scores of the
one that was not asked for are masked. So a key costs one copy and twice its bytes, whatever the context.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jaxllm.pallas_kernels.latent_attention.tpu.copies import TABLES, Copies, Memory, Place, Ref, Scalars
from jaxllm.pallas_kernels.latent_attention.tpu.kernel import Attention
from jaxllm.pallas_kernels.latent_attention.tpu.sizes import Blocks, Sizes, padded_heads, vmem_bytes
from jaxllm.pallas_kernels.latent_attention.tpu.softmax import State, absorb, begin_with, scores_of
from jaxllm.pallas_kernels.tpu_common.compiler import compiler_params
from jaxllm.pallas_kernels.tpu_common.constants import LANES, LOG2_E, MASKED
from jaxllm.pallas_kernels.tpu_common.scalars import div, rem
from jaxllm.pallas_kernels.tpu_common.target import target

COPIES = 512
"""Copies of a block of keys."""

_TOGETHER = 32
"""Copies that are started in one go, a row of the table, so that few addresses are left to compute.

Each token has a multiple of as many, some of them of keys that it does not see.
"""


class _TokenCopies(Copies):
    """Copies of single tokens, of as many as are in a row of words.

    The interpreter has no views of another type, and copies rows of the cache's own type.
    """

    def __init__(self, scalars: Scalars, memory: Memory, sizes: Sizes, blocks: Blocks, *, by_words: bool) -> None:
        super().__init__(scalars, memory, sizes, blocks)
        self.by_words, self.size = by_words, 1 if by_words else sizes.page_size

    def _start_pages(self, place: Place) -> None:
        memory, slot, table = self.memory, rem(place.step, self.blocks.slots), rem(place.row, TABLES)
        rows = self.blocks.keys // self.sizes.page_size // _TOGETHER
        cache, kv, size = self._view(memory.cache), self._view(memory.kv), self.size

        def group(number: Any, _: None) -> None:
            row = place.block * rows + number
            for column in range(_TOGETHER):
                word = memory.table_rows[table, row, column]
                source = cache.at[pl.ds(word * size, size), pl.ds(0, self.sizes.token)]
                tile = kv.at[slot, number * (_TOGETHER // 8) + column // 8]
                target = tile.at[pl.ds(column % 8 * size, size)]
                pltpu.make_async_copy(source, target, memory.kv_sems.at[slot]).start()

        lax.fori_loop(0, div(self._pages(place.row, place.index, place.block), _TOGETHER), group, None)

    def _view(self, ref: Ref) -> Ref:
        return ref.bitcast(jnp.uint32) if self.by_words else ref

    def wait_keys(self, row: Any, index: Any, block: Any, slot: Any) -> None:
        """See `Copies`."""
        arrived = self.memory.kv.at[slot, pl.ds(0, div(self._pages(row, index, block), 8))]
        pltpu.make_async_copy(arrived, arrived, self.memory.kv_sems.at[slot]).wait()


class _ChosenAttention(Attention):
    """Queries have rows under them that are added to the scores: zero, or what masks."""

    def keys(self, row: Any, index: Any, block: Any, step: Any, item: Any) -> None:
        """One block of keys."""
        memory, sizes, chunk = self.memory, self.sizes, self.blocks.chunk
        slot = rem(step, self.blocks.slots)
        self.copies.wait_keys(row, index, block, slot)
        both = memory.queries.at[rem(item, self.blocks.slots), 0]
        queries, state = both[: sizes.heads].astype(sizes.dtype), State(*(ref[...] for ref in memory.run))
        count, copies = self.blocks.keys // chunk, chunk // sizes.page_size
        tiles = copies // 8
        chunks = [memory.kv[slot, number * tiles : (number + 1) * tiles].reshape(chunk, -1) for number in range(count)]
        scored = [scores_of(queries, keys, sizes) for keys in chunks]
        for number, (scores, keys) in enumerate(zip(scored, chunks, strict=True)):
            added = both[pl.ds(sizes.heads + block * count + number, 1), :chunk]
            state = absorb(state, scores + added, keys[:, : sizes.value], sizes)
        for ref, value in zip(memory.run, state, strict=True):
            ref[...] = value


def _kernel(*refs: Ref, sizes: Sizes, blocks: Blocks, by_words: bool, has_sinks: bool) -> None:
    """The kernel's body; `attend_to_places` gives it its references."""
    count = len(Scalars._fields)
    table, q, cache, *begun, out = refs[count : count + 4 + has_sinks]
    table_rows, kv, queries, results, sent, *rest = refs[count + 4 + has_sinks :]
    own = begun[0] if has_sinks else None
    memory = Memory(table, q, cache, out, table_rows, kv, queries, results, sent, State(*rest[:3]), own, *rest[3:])
    copies = _TokenCopies(Scalars(*refs[:count]), memory, sizes, blocks, by_words=by_words)
    _ChosenAttention(copies).run()


def attend_to_places(
    queries: jax.Array,
    kv_cache: jax.Array,
    layer: jax.Array,
    places: jax.Array,
    positions: jax.Array,
    count: jax.Array,
    value_size: int,
    scale: float,
    *,
    sinks: jax.Array | None = None,
    checks: bool = False,
    copies: int = COPIES,
    interpret: Any = False,
) -> jax.Array:
    """Attention of the first `count` of tokens [T] to keys at their places in the cache, [T, N, Z].

    Args:
        queries: [T, N, X], for the first X numbers of a token in the cache; X is whole rows of lanes.
        kv_cache: [L, P, C, S].
        layer: int32 [].
        places: int32 [T, top]; of these a token sees the first, as many as it has keys.
        positions: int32 [T].
        count: int32 []; what other tokens get means nothing.
        value_size: the first numbers of a key, which are its value.
        scale: factor on the scores.
        sinks, checks: see `LatentOptions`.
        copies: copies of a block, a multiple of 128.
        interpret: for tests.
    """
    tokens, num_heads, width = queries.shape
    together, chunk = 4 // kv_cache.dtype.itemsize, min(512, width // LANES * LANES)
    chunk = chunk if copies * together % chunk == 0 else LANES
    sizes = Sizes(padded_heads(num_heads), width, -(-value_size // LANES) * LANES, together, kv_cache.dtype.name)
    blocks = Blocks(copies * together, chunk, slots=4)
    top = places.shape[1]
    places = jnp.pad(places, ((0, 0), (0, -top % copies)))
    seen = jnp.minimum(positions + 1, top)
    copied = lax.div(seen + (_TOGETHER - 1), jnp.int32(_TOGETHER)) * _TOGETHER
    layer_words = kv_cache.shape[1] * kv_cache.shape[2] // together
    table = (layer * layer_words + lax.div(places, jnp.int32(together))).reshape(tokens, -1, _TOGETHER)
    joined = _with_masks(queries.astype(jnp.float32) * (scale * LOG2_E), places, seen, sizes, chunk)
    order = jnp.arange(tokens + 1, dtype=jnp.int32)
    scalars = Scalars(jnp.zeros(1, jnp.int32), count.reshape(1), order[:tokens], copied * together, order)
    by_words, begun = together > 1 and not interpret, () if sinks is None else (begin_with(sinks, sizes.heads),)
    hbm = pl.BlockSpec(memory_space=pltpu.HBM)
    room = vmem_bytes(blocks, sizes, target().vmem_bytes) + 4 * blocks.slots * joined.shape[1] * width
    out: jax.Array = pl.pallas_call(
        partial(_kernel, sizes=sizes, blocks=blocks, by_words=by_words, has_sinks=len(begun) > 0),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=len(scalars),
            grid=(1,),
            in_specs=[*[hbm] * 3, *[pl.BlockSpec(memory_space=pltpu.VMEM)] * len(begun)],
            out_specs=hbm,
            scratch_shapes=[
                pltpu.SMEM((TABLES, *table.shape[1:]), jnp.int32),
                pltpu.VMEM((blocks.slots, copies // 8, 8 * together, width), kv_cache.dtype),
                pltpu.VMEM((blocks.slots, 1, joined.shape[1], width), jnp.float32),
                pltpu.VMEM((2, 1, sizes.heads, sizes.value), kv_cache.dtype),
                pltpu.SMEM((2,), jnp.int32),
                *[pltpu.VMEM((sizes.heads, LANES), jnp.float32)] * 2,
                pltpu.VMEM((sizes.heads, sizes.value), jnp.float32),
                pltpu.SemaphoreType.DMA((blocks.slots,)),
                pltpu.SemaphoreType.DMA((TABLES,)),
                pltpu.SemaphoreType.DMA((blocks.slots,)),
                pltpu.SemaphoreType.DMA((2,)),
            ],
        ),
        out_shape=jax.ShapeDtypeStruct((tokens, sizes.heads, sizes.value), kv_cache.dtype),
        compiler_params=compiler_params(min(room, target().vmem_bytes), checks=checks),
        interpret=interpret,
        name="latent_attention_chosen",
    )(*scalars, table, joined, kv_cache.reshape(-1, kv_cache.shape[3]), *begun)
    is_token = jnp.arange(tokens, dtype=jnp.int32) < count
    return jnp.where(is_token[:, None, None], out[:, :num_heads, :value_size], 0)


def _with_masks(queries: jax.Array, places: jax.Array, seen: jax.Array, sizes: Sizes, chunk: int) -> jax.Array:
    """Queries [T, N, S] in whole tiles, and under them rows that are added to the scores of `chunk` keys each."""
    tokens, heads, width = queries.shape
    together = sizes.page_size
    number = jnp.arange(places.shape[1], dtype=jnp.int32)
    is_seen = (number < seen[:, None])[:, :, None] & (
        lax.rem(places, jnp.int32(together))[:, :, None] == jnp.arange(together)
    )
    masks = jnp.where(is_seen, 0.0, MASKED).reshape(tokens, -1, chunk)
    masks = jnp.pad(masks, ((0, 0), (0, -masks.shape[1] % 8), (0, width - chunk)))
    return jnp.concatenate([jnp.pad(queries, ((0, 0), (0, sizes.heads - heads), (0, 0))), masks], axis=1)
