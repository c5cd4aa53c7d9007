"""The words of the TPU kernels: what is packed is what is unpacked, and words hold the bits of the elements."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm.pallas_kernels.paged_attention import CacheGeometry, cache_shape
from jaxllm.pallas_kernels.paged_attention.tpu.blocks import Target, choose_blocks
from jaxllm.pallas_kernels.paged_attention.tpu.layout import (
    Dims,
    from_canonical,
    pack_kv,
    pack_kv_words,
    pack_q,
    to_canonical,
    unpack_q,
)


def _random(dtype: str, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).normal(0, 3, shape), jnp.float32).astype(dtype)


def _dims(dtype: str, heads: int, head_size: int, q_dtype: str = "bfloat16", group: int = 3) -> Dims:
    return Dims(heads, group, head_size, 16, q_dtype, dtype)


@pytest.mark.parametrize(
    ("dtype", "heads", "head_size"),
    [("float32", 3, 256), ("bfloat16", 1, 80), ("int8", 3, 64), ("float8_e5m2", 8, 256)],
)
def test_cache_round_trip(dtype: str, heads: int, head_size: int) -> None:
    dims = _dims(dtype, heads, head_size)
    cache = _random(dtype, 2, 3, 16, 2 * heads, head_size)
    packed = from_canonical(cache, dims)
    assert packed.shape == cache_shape("tpu", CacheGeometry(2, 3, 16, heads, head_size, dtype))
    np.testing.assert_array_equal(np.asarray(to_canonical(packed, dims)), np.asarray(cache))


@pytest.mark.parametrize(
    ("dtype", "heads", "head_size"), [("bfloat16", 3, 256), ("int8", 1, 64), ("float8_e4m3fn", 3, 80), ("int8", 8, 256)]
)
def test_words_hold_the_bits_of_the_elements(dtype: str, heads: int, head_size: int) -> None:
    dims = _dims(dtype, heads, head_size)
    k, v = _random(dtype, 5, heads, head_size), -_random(dtype, 5, heads, head_size)
    bits = 32 // dims.kv_packing
    elements = jax.lax.bitcast_convert_type(pack_kv(k, v, dims), jnp.dtype(f"uint{bits}")).astype(jnp.uint32)
    shifts = jnp.arange(dims.kv_packing, dtype=jnp.uint32) * jnp.uint32(bits)
    expected = (elements << shifts[:, None]).sum(axis=2, keepdims=True, dtype=jnp.uint32)
    np.testing.assert_array_equal(np.asarray(pack_kv_words(k, v, dims)), np.asarray(expected))


@pytest.mark.parametrize(
    ("group", "head_size", "q_dtype"), [(1, 80, "bfloat16"), (4, 128, "float32"), (5, 256, "bfloat16")]
)
def test_queries_round_trip(group: int, head_size: int, q_dtype: str) -> None:
    dims = _dims("bfloat16", 2, head_size, q_dtype, group)
    q = _random(q_dtype, 7, 2 * group, head_size)
    np.testing.assert_array_equal(np.asarray(unpack_q(pack_q(q, dims), dims)), np.asarray(q))


@pytest.mark.parametrize("page_size", [16, 48, 256])
@pytest.mark.parametrize("vmem", [16 << 20, 128 << 20])
@pytest.mark.parametrize("kernel", ["decode", "prefill"])
def test_blocks_fit(kernel: str, vmem: int, page_size: int) -> None:
    for heads, group in ((1, 8), (8, 4), (16, 1), (8, 16)):
        dims = Dims(heads, group, 128, page_size, "bfloat16", "bfloat16")
        blocks = choose_blocks(kernel, dims, 2048, Target("none", vmem))
        assert blocks.keys % page_size == 0
        assert blocks.keys % blocks.chunk == 0
        assert blocks.chunk % 128 == 0
        assert blocks.slots * blocks.keys * dims.token_bytes <= vmem // 2
