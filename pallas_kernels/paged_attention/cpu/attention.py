"""Paged attention on CPUs: the arguments of the kernel's call."""

from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.cpu_common.processor import host_processor
from jaxllm.pallas_kernels.cpu_common.targets import Target, provide
from jaxllm.pallas_kernels.paged_attention.backend import Backend, CacheGeometry
from jaxllm.pallas_kernels.paged_attention.block_index import AnyIndex, BlockIndex
from jaxllm.pallas_kernels.paged_attention.dynamic_scales import SCALE
from jaxllm.pallas_kernels.paged_attention.options import AttentionOptions
from jaxllm.pallas_kernels.paged_attention.xla.layout import canonical, head_major
from jaxllm.pallas_kernels.ragged_batch import RaggedBatch, quantise


def transposed_shape(geometry: CacheGeometry) -> tuple[int, ...]:
    """[L, P, 2, K, C * H]: in a page, the keys of head 0 as [H, C], of head 1, ..., then the value heads as [C, H].

    Scales by token lie after each of these, float32 [C], not after each of their rows.
    """
    page = geometry.page_size * geometry.head_size
    return (geometry.layers, geometry.pages, 2, geometry.num_kv_heads, page)


def to_transposed(cache: jax.Array, scale_bytes: int = 0) -> jax.Array:
    """A canonical cache in that shape, for tests and tools."""
    both = head_major(cache)
    size = both.shape[5] - scale_bytes
    keys, values = both[:, :, 0, ..., :size].swapaxes(-1, -2), both[:, :, 1, ..., :size]
    numbers = jnp.stack([each.reshape(*each.shape[:3], -1) for each in (keys, values)], axis=2)
    scales, unused = both[..., size : size + SCALE], both[..., size + SCALE :]
    return jnp.concatenate([numbers, *(each.reshape(*each.shape[:4], -1) for each in (scales, unused))], axis=-1)


def from_transposed(cache: jax.Array, page_size: int, scale_bytes: int = 0) -> jax.Array:
    """The inverse of `to_transposed`."""
    end = cache.shape[4] - page_size * scale_bytes
    numbers, scales, unused = jnp.split(cache, [end, end + page_size * min(scale_bytes, SCALE)], axis=-1)
    layers, pages, _, heads, page = numbers.shape
    keys = numbers[:, :, 0].reshape(layers, pages, heads, page // page_size, page_size).swapaxes(-1, -2)
    values = numbers[:, :, 1].reshape(keys.shape)
    both = jnp.stack([keys, values], axis=2)
    behind = [each.reshape(*both.shape[:5], -1) for each in (scales, unused) if each.shape[-1]]
    return canonical(jnp.concatenate([both, *behind], axis=-1))


MULTIPLE = 16
"""The multiple that heads and pages must be: whole vectors, on processors with the longest."""
CACHE_BYTES = {"float32": 4, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1, "int8": 1}
"""Types of KV cache that the kernel reads, and their bytes."""


def attention_target(
    dtype: str,
    *,
    scaled: bool = False,
    spans: bool = False,
    paired: bool = False,
    is_narrow: bool = False,
    is_chosen: bool = False,
) -> Target:
    """The kernel for a cache of a type (NumPy's name), whose tokens and heads have scales of their own if `scaled`.

    With `spans` tokens may see later ones. `paired` is for a cache of `cpu.pairs`, of bfloat16; `is_narrow` for other
    caches, if queries and results are bfloat16. If `is_chosen`, an index chooses the keys that are seen.
    """
    parts = {"pairs": paired, "scaled": scaled, "spans": spans, "narrow": is_narrow, "chosen": is_chosen}
    name = "_".join(["jaxllm_paged_attention", dtype, *(part for part, is_there in parts.items() if is_there)])
    make = partial(_build, dtype, scaled=scaled, spans=spans, paired=paired, is_narrow=is_narrow, is_chosen=is_chosen)
    return Target(name, make, Path(__file__).parent)


def _build(dtype: str, *, scaled: bool, spans: bool, paired: bool, is_narrow: bool, is_chosen: bool) -> bytes:
    from jaxllm.pallas_kernels.cpu_common.build import build
    from jaxllm.pallas_kernels.paged_attention.cpu.kernel import make_kernel

    # For pairs: `cpu_common.bfloat16.PAIRS`.
    kind = f"{dtype}_pairs" if paired else dtype
    options = {"scaled": scaled, "spans": spans, "is_narrow": is_narrow, "is_chosen": is_chosen}
    return build(make_kernel(kind, CACHE_BYTES[dtype], **options))


def cpu_paged_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    kv_cache: jax.Array,
    layer: int | jax.Array,
    batch: RaggedBatch,
    options: AttentionOptions,
) -> tuple[jax.Array, jax.Array]:
    """See `paged_attention`. The cache is [L, P, 2, K, C * H], see `transposed_shape`.

    Raises:
        ValueError: heads or pages are no multiples of 16.
    """
    arrays, heads = (q.astype(jnp.float32), *_stored(k, v, kv_cache, options)), (q.shape[1], k.shape[1])
    out, kv_cache = call_kernel(arrays, heads, kv_cache, layer, batch, options, None)
    return out.astype(q.dtype), kv_cache


def cpu_indexed_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    kv_cache: jax.Array,
    layer: int | jax.Array,
    batch: RaggedBatch,
    options: AttentionOptions,
    index: AnyIndex,
) -> tuple[jax.Array, jax.Array]:
    """See `paged_attention`. Where no request can have more blocks than are chosen, they are not compared.

    Raises:
        NotImplementedError: the index scores groups of keys by their means.
        ValueError: heads, pages or blocks are no multiples of 16.
    """
    new, heads = _stored(*index.joined(k, v), kv_cache, options), (q.shape[1], k.shape[1])
    queries = jnp.pad(index.query.astype(jnp.float32), ((0, 0), (0, 0), (0, q.shape[2] - index.query.shape[2])))
    arrays, own = (q.astype(jnp.float32), *new), (index, queries)
    out, kv_cache = call_kernel(arrays, heads, kv_cache, layer, batch, options, None, index=own)
    return out.astype(q.dtype), kv_cache


def _stored(k: jax.Array, v: jax.Array, kv_cache: jax.Array, options: AttentionOptions) -> tuple[jax.Array, jax.Array]:
    """Keys and values as the kernel takes them."""
    k_scale, v_scale = options.k_scale, options.v_scale
    if options.scale_bytes:
        # The kernel itself quantizes.
        return k.astype(jnp.float32), v.astype(jnp.float32)
    if k_scale is not None or v_scale is not None or not k.dtype == kv_cache.dtype == jnp.float32:
        return quantise(k, k_scale, kv_cache.dtype), quantise(v, v_scale, kv_cache.dtype)
    return k, v


def supports_merged(head_size: int, dtype: str, stored: str, scale_bytes: int) -> bool:
    """See `Backend.supports_merged`. bfloat16 is rounded by an instruction that not all processors have."""
    if head_size % (2 * MULTIPLE) or dtype not in ("float32", "bfloat16"):
        return False
    if dtype == "bfloat16":
        return scale_bytes > 0 and host_processor().multiplies_bfloat16
    return scale_bytes > 0 or stored == "float32"


def merged_attention(
    qkv: jax.Array,
    rotation: tuple[jax.Array, jax.Array],
    kv_cache: jax.Array,
    layer: int | jax.Array,
    batch: RaggedBatch,
    options: AttentionOptions,
) -> tuple[jax.Array, jax.Array]:
    """`cpu_paged_attention` of queries, keys and values that one product has made, before the rotary embedding.

    Args:
        qkv: float32 [T, (N + 2 K) * H]: the query heads of a token, then its keys, then its values. bfloat16 if the
            cache is int8.
        rotation: cosine and sine, float32 [T, H / 2], of the angles by which the pairs (i, i + H / 2) of queries and
            keys are turned.
        kv_cache: float32 [L, P, 2, K, C * H], or int8 with a scale for each token and head.
        layer, batch, options: see `paged_attention`; no scales of a whole layer.

    Returns [T, N * H], of the type of `qkv`, and the cache.

    Raises:
        ValueError: a type is not float32, or half a head is no multiple of 16.
    """
    cos, sin = rotation
    head_size = 2 * cos.shape[1]
    is_narrow = options.scale_bytes > 0 and qkv.dtype == jnp.bfloat16
    is_stored = kv_cache.dtype == (jnp.int8 if options.scale_bytes else jnp.float32)
    is_taken = (is_narrow or qkv.dtype == jnp.float32) and cos.dtype == sin.dtype == jnp.float32
    if not (is_stored and is_taken) or cos.shape[1] % MULTIPLE:
        raise ValueError(
            f"{qkv.dtype} of heads of {head_size} for a cache of {kv_cache.dtype}: needs float32 and a multiple of 32"
        )
    tokens, num_heads = qkv.shape[0], qkv.shape[1] // head_size - 2 * kv_cache.shape[3]
    arrays, heads = (qkv.reshape(tokens, -1, head_size),) * 3, (num_heads, kv_cache.shape[3])
    out, kv_cache = call_kernel(arrays, heads, kv_cache, layer, batch, options, rotation, is_narrow=is_narrow)
    return out.reshape(tokens, num_heads * head_size), kv_cache


def call_kernel(
    arrays: tuple[jax.Array, ...],
    heads: tuple[int, int],
    kv_cache: jax.Array,
    layer: int | jax.Array,
    batch: RaggedBatch,
    options: AttentionOptions,
    rotation: tuple[jax.Array, jax.Array] | None,
    *,
    paired: bool = False,
    is_narrow: bool = False,
    index: tuple[AnyIndex, jax.Array] | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Results [T, N, H], float32 or if `paired` or `is_narrow` bfloat16, and the cache; `arrays` are as in `work`.

    `heads` are N and K. An `index` has queries as the kernel takes them, rows of H times four bytes.

    Raises:
        NotImplementedError: an index scores groups of keys by their means.
        ValueError: heads, pages or blocks of an index are no multiples of 16.
    """
    num_heads, num_kv_heads = heads
    tokens, _, head_size = arrays[0].shape
    page_size = kv_cache.shape[4] // (head_size + options.scale_bytes)
    if head_size % MULTIPLE or page_size % MULTIPLE:
        raise ValueError(f"head size {head_size} and page size {page_size} must be multiples of {MULTIPLE}")
    rest: tuple[jax.Array, ...] = () if batch.visible_until is None else (batch.visible_until,)
    scaled, spans, is_chosen = options.scale_bytes > 0, len(rest) > 0, False
    if index is not None:
        choice, queries = index
        if not isinstance(choice, BlockIndex):
            raise NotImplementedError("the kernel for CPUs does not score groups of keys by their means")
        if choice.block % MULTIPLE:
            raise ValueError(f"blocks of {choice.block} keys must be multiples of {MULTIPLE}")
        is_chosen = batch.page_table.shape[1] * page_size > choice.top * choice.block
        rest = (queries, jnp.asarray([choice.block, choice.top, choice.local], jnp.int32)) if is_chosen else ()
    parts = {"scaled": scaled, "spans": spans, "paired": paired, "is_narrow": is_narrow, "is_chosen": is_chosen}
    target = attention_target(kv_cache.dtype.name, **parts)
    provide(target)
    result = jnp.bfloat16 if paired or is_narrow else jnp.float32
    none, no_angles = jnp.zeros(num_heads, jnp.float32), jnp.zeros((0, 0), jnp.float32)
    sinks, slopes = options.sinks, options.alibi_slopes
    k_scale, v_scale = (1.0 if factor is None else factor for factor in (options.k_scale, options.v_scale))
    floats = [options.scale * k_scale, options.soft_cap or 0.0, v_scale]
    ints = [layer, 0 if options.window is None else options.window, batch.num_requests, batch.num_tokens]
    ints += [int(sinks is not None), int(slopes is not None), num_heads, int(options.writes), options.scale_bytes]
    ints.append(num_kv_heads)
    out, kv_cache = jax.ffi.ffi_call(
        target.name,
        (
            jax.ShapeDtypeStruct((tokens, num_heads, head_size), result),
            jax.ShapeDtypeStruct(kv_cache.shape, kv_cache.dtype),
        ),
        input_output_aliases={3: 1},
    )(
        *arrays,
        kv_cache,
        batch.positions,
        batch.query_start,
        batch.page_table,
        jnp.stack([jnp.int32(each) for each in ints]),
        jnp.concatenate(
            [
                jnp.stack([jnp.float32(each) for each in floats]),
                *(none if each is None else jnp.asarray(each, jnp.float32) for each in (sinks, slopes)),
            ]
        ),
        *(rotation or (no_angles, no_angles)),
        *rest,
    )
    return out, kv_cache


BACKEND = Backend(
    cpu_paged_attention,
    transposed_shape,
    from_canonical=to_transposed,
    to_canonical=from_transposed,
    merged=merged_attention,
    supports_merged=supports_merged,
    supports_spans=True,
    call_indexed=cpu_indexed_attention,
    page_size=lambda shape, head_size: shape[4] // head_size,
)
