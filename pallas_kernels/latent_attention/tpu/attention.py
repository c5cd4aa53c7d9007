"""Latent attention on TPUs: the arguments of the kernel, once for decodes and once for other rows."""

import jax
import jax.numpy as jnp
from jax.experimental.pallas import tpu as pltpu

from jaxllm.pallas_kernels.latent_attention.backend import (
    ChosenKeys,
    KeyIndex,
    LatentBackend,
    LatentGeometry,
    LatentOptions,
    LatentSizes,
)
from jaxllm.pallas_kernels.latent_attention.tpu.chosen import choose_by_scores
from jaxllm.pallas_kernels.latent_attention.tpu.copies import Scalars
from jaxllm.pallas_kernels.latent_attention.tpu.gather import attend_to_places
from jaxllm.pallas_kernels.latent_attention.tpu.kernel import attend_rows
from jaxllm.pallas_kernels.latent_attention.tpu.sizes import (
    Blocks,
    Sizes,
    choose_blocks,
    most_together,
    padded_heads,
    refusal,
    row_size,
    vmem_bytes,
    whole_rows,
)
from jaxllm.pallas_kernels.latent_attention.tpu.softmax import begin_with
from jaxllm.pallas_kernels.latent_attention.write import joined_queries, write_latents
from jaxllm.pallas_kernels.ragged_batch import RaggedBatch
from jaxllm.pallas_kernels.short_rows import MOST_SHORT
from jaxllm.pallas_kernels.tpu_common.batch import tpu_prepare
from jaxllm.pallas_kernels.tpu_common.constants import LOG2_E
from jaxllm.pallas_kernels.tpu_common.target import target


def tpu_latent_attention(
    q_latent: jax.Array,
    q_rope: jax.Array,
    latent: jax.Array,
    k_rope: jax.Array,
    kv_cache: jax.Array,
    layer: int | jax.Array,
    batch: RaggedBatch,
    options: LatentOptions,
    *,
    decode_blocks: Blocks | None = None,
    prefill_blocks: Blocks | None = None,
    interpret: pltpu.InterpretParams | bool = False,
) -> tuple[jax.Array, jax.Array]:
    """See `latent_attention`. The cache is [L, P, C, S], see `cache_shape`.

    Raises:
        ValueError: pages are no multiples of 16, or the cache is of another type.
    """
    _check(kv_cache)
    if options.writes:
        kv_cache = write_latents(kv_cache, latent, k_rope, layer=layer, batch=batch)
    blocks = decode_blocks, prefill_blocks
    return _attend_to_all(q_latent, q_rope, kv_cache, layer, batch, options, blocks, interpret), kv_cache


def _check(kv_cache: jax.Array) -> None:
    problem = refusal(kv_cache.shape[2], kv_cache.dtype.name)
    if problem is not None:
        raise ValueError(f"latent attention on TPUs {problem}")


def _attend_to_all(
    q_latent: jax.Array,
    q_rope: jax.Array,
    kv_cache: jax.Array,
    layer: int | jax.Array,
    batch: RaggedBatch,
    options: LatentOptions,
    asked: tuple[Blocks | None, Blocks | None] = (None, None),
    interpret: pltpu.InterpretParams | bool = False,
) -> jax.Array:
    """Attention of every token to the keys of its window, [T, N, Z]; `asked` are blocks of decodes and of others."""
    decode_blocks, prefill_blocks = asked
    tokens, num_heads, size = q_latent.shape
    page_size, token_size = kv_cache.shape[2:]
    sizes = Sizes(padded_heads(num_heads), token_size, whole_rows(size), page_size, kv_cache.dtype.name, options.window)
    begun = None if options.sinks is None else begin_with(options.sinks, sizes.heads)
    # The factor of scores is part of the queries, for powers of two.
    queries = joined_queries(q_latent, q_rope, token_size).astype(jnp.float32) * (options.scale * LOG2_E)
    queries = jnp.pad(queries, ((0, 0), (0, sizes.heads - num_heads), (0, 0))).astype(kv_cache.dtype)
    out = jnp.zeros((tokens, sizes.heads, sizes.value), kv_cache.dtype)
    prepared = tpu_prepare(batch)
    every = jnp.arange(batch.kv_lens.shape[0], dtype=jnp.int32)
    layers = jnp.asarray(layer, jnp.int32).reshape(1)
    kinds = [("decode", decode_blocks, every, 0), ("prefill", prefill_blocks, prepared.order, 1)]
    for name, given, order, which in kinds[: 1 if tokens == 1 else 2]:
        scalars = Scalars(layers, prepared.counts[which : which + 1], order, batch.kv_lens, batch.query_start)
        blocks = given or choose_blocks(name, sizes, tokens, prepared.most_short)
        out = attend_rows(
            scalars,
            prepared.table,
            queries,
            kv_cache,
            out,
            begun,
            sizes,
            blocks,
            name=f"latent_attention_{name}",
            vmem_bytes=vmem_bytes(blocks, sizes, target().vmem_bytes),
            checks=options.checks,
            interpret=interpret,
        )
    return out[:, :num_heads, :size].astype(q_latent.dtype)


def tpu_indexed_latent_attention(
    q_latent: jax.Array,
    q_rope: jax.Array,
    latent: jax.Array,
    k_rope: jax.Array,
    kv_cache: jax.Array,
    layer: int | jax.Array,
    batch: RaggedBatch,
    options: LatentOptions,
    index: KeyIndex | ChosenKeys,
    *,
    interpret: pltpu.InterpretParams | bool = False,
) -> tuple[jax.Array, jax.Array, ChosenKeys]:
    """See `indexed_latent_attention`. The cache is [L, P, C, S], see `cache_shape`.

    Three kernels score the keys, choose the best ones, and attend to these.

    Raises:
        ValueError: see `tpu_latent_attention`.
    """
    _check(kv_cache)
    layer, start = jnp.asarray(layer, jnp.int32), whole_rows(q_latent.shape[2] + q_rope.shape[2])
    rope = _padded(jnp.concatenate([latent, k_rope], axis=-1))[:, latent.shape[1] :]
    own = (index.key,) if isinstance(index, KeyIndex) else ()
    assert not options.window, "keys are chosen among all of them"
    if options.writes:
        kv_cache = write_latents(kv_cache, latent, rope, *own, layer=layer, batch=batch)
    top = index.top if isinstance(index, KeyIndex) else index.places.shape[1]
    if batch.page_table.shape[1] * kv_cache.shape[2] <= top:
        every = ChosenKeys(jnp.zeros((len(q_latent), top), jnp.int32))
        attended = _attend_to_all(q_latent, q_rope, kv_cache, layer, batch, options, interpret=interpret)
        return attended, kv_cache, every
    if isinstance(index, KeyIndex):
        index = choose_by_scores(kv_cache, layer, batch, index, start, checks=options.checks, interpret=interpret)
    attended = attend_to_places(
        joined_queries(q_latent, q_rope, start),
        kv_cache,
        layer,
        index.places,
        batch.positions,
        batch.num_tokens,
        q_latent.shape[2],
        options.scale,
        sinks=options.sinks,
        checks=options.checks,
        interpret=interpret,
    )
    return attended.astype(q_latent.dtype), kv_cache, index


def tpu_latent_prepare(batch: RaggedBatch, num_heads: int, most_short: int) -> RaggedBatch:
    """See `LatentBackend.prepare`."""
    if most_short == 1:
        return batch
    return tpu_prepare(batch, most_together(num_heads, min(most_short, len(batch.positions), MOST_SHORT)))


def cache_shape(geometry: LatentGeometry) -> tuple[int, ...]:
    """[L, P, C, S]: S is Z + Y rounded up to whole rows of 128 lanes, as TPUs would pad it themselves, and I likewise.

    So a copy can bring index keys alone.
    """
    return (geometry.layers, geometry.pages, geometry.page_size, row_size(geometry.sizes))


def _padded(x: jax.Array) -> jax.Array:
    """`x` [..., S] in whole rows of lanes."""
    size = x.shape[-1]
    return jnp.pad(x, ((0, 0),) * (x.ndim - 1) + ((0, whole_rows(size) - size),))


def _in_whole_rows(cache: jax.Array, sizes: LatentSizes) -> jax.Array:
    return jnp.concatenate([_padded(cache[..., : sizes.key]), _padded(cache[..., sizes.key :])], axis=-1)


def _without_padding(cache: jax.Array, sizes: LatentSizes) -> jax.Array:
    start = whole_rows(sizes.key)
    return jnp.concatenate([cache[..., : sizes.key], cache[..., start : start + sizes.index]], axis=-1)


BACKEND = LatentBackend(
    tpu_latent_attention,
    cache_shape,
    _in_whole_rows,
    _without_padding,
    prepare=tpu_latent_prepare,
    supports=frozenset({"sinks", "windows", "latents of other layers", "latents of several sizes"}),
    call_indexed=tpu_indexed_latent_attention,
)
