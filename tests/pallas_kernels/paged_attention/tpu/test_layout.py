"""The words of the TPU kernels: what is packed is what is unpacked, and words hold the bits of the elements."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm.pallas_kernels.paged_attention import CacheGeometry, cache_shape
from jaxllm.pallas_kernels.paged_attention.cases import Case
from jaxllm.pallas_kernels.paged_attention.shared_rows import SharedRows
from jaxllm.pallas_kernels.paged_attention.tpu.blocks import choose_blocks
from jaxllm.pallas_kernels.paged_attention.tpu.canonical import from_canonical, to_canonical
from jaxllm.pallas_kernels.paged_attention.tpu.layout import Dims, pack_kv, pack_kv_words, pack_q, unpack_q
from jaxllm.pallas_kernels.tpu_common.target import Target


def _random(dtype: str, *shape: int) -> jax.Array:
    return jnp.asarray(np.random.default_rng(0).normal(0, 3, shape), jnp.float32).astype(dtype)


def _dims(dtype: str, heads: int, head_size: int, q_dtype: str = "bfloat16", group: int = 3) -> Dims:
    return Dims(heads, group, head_size, 16, q_dtype, dtype)


@pytest.mark.parametrize(
    ("dtype", "heads", "head_size"),
    [
        ("float32", 3, 256),
        ("bfloat16", 1, 80),
        ("bfloat16", 8, 64),
        ("float32", 3, 32),
        ("int8", 3, 64),
        ("float8_e5m2", 8, 256),
    ],
)
def test_cache_round_trip(dtype: str, heads: int, head_size: int) -> None:
    case = Case("", ((1, 0),), num_heads=heads, num_kv_heads=heads, head_size=head_size, kv_dtype=dtype)
    cache = _random(dtype, 2, 3, 16, 2 * heads, head_size)
    packed = from_canonical(cache, case)
    assert packed.shape == cache_shape("tpu", CacheGeometry(2, 3, 16, heads, head_size, dtype))
    np.testing.assert_array_equal(np.asarray(to_canonical(packed, case)), np.asarray(cache))


@pytest.mark.parametrize(
    ("heads", "head_size", "padded"), [(8, 64, 1), (2, 64, 1), (1, 64, 2), (3, 64, 4 / 3), (8, 32, 1), (8, 80, 1.6)]
)
def test_narrow_heads_share_rows(heads: int, head_size: int, padded: float) -> None:
    """A cache is as large as its keys and values, but for one KV head alone and sizes that do not divide a row."""
    shape = cache_shape("tpu", CacheGeometry(1, 1, 16, heads, head_size, "bfloat16"))
    assert np.prod(shape) == 16 * 2 * heads * head_size * padded


@pytest.mark.parametrize(("heads", "group", "head_size"), [(8, 4, 64), (3, 2, 64), (5, 1, 32), (1, 8, 64), (2, 4, 128)])
def test_scores_and_results_of_wide_heads_are_those_of_the_narrow(heads: int, group: int, head_size: int) -> None:
    shared = SharedRows(heads, group, head_size)
    q, kv = _random("float32", 5, heads * group, head_size), _random("float32", 7, heads, head_size)
    queries, rows = shared.spread(q), shared.join(kv)
    by_row = queries.reshape(5, shared.rows, -1, rows.shape[-1])
    scores = jnp.einsum("trgh,srh->trgs", by_row, rows, precision="highest").reshape(5, -1, 7)
    wanted = jnp.einsum("tkgh,skh->tkgs", q.reshape(5, heads, group, -1), kv, precision="highest").reshape(5, -1, 7)
    np.testing.assert_allclose(scores[:, : heads * group], wanted, rtol=1e-5, atol=1e-4)
    weighed = jnp.broadcast_to(rows.sum(0)[:, None], by_row.shape).reshape(queries.shape)
    own = jnp.broadcast_to(kv.sum(0)[:, None], (5, heads, group, head_size)).reshape(q.shape)
    np.testing.assert_array_equal(shared.own(weighed), own)


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
