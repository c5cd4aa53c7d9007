"""The kernel for CPUs: the same bits for a token, however its prompt was cut and whoever is in the step with it."""

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from jaxllm.pallas_kernels.cpu_common.processor import host_processor
from jaxllm.pallas_kernels.paged_attention.backend import get_backend
from jaxllm.pallas_kernels.paged_attention.cases import Case, make_inputs
from jaxllm.pallas_kernels.paged_attention.cpu.attention import merged_attention
from tests.pallas_kernels.cut_prompts import PREFIXES, SHARING_ROWS, TOKENS, check_cuts, check_shared_pages
from tests.pallas_kernels.paged_attention.oracle import cached_inputs, check, run_function
from tests.thinned import EVERY_CASE


@pytest.mark.parametrize(
    "features", [{}, {"window": 40}, {"sinks": True, "soft_cap": 5.0, "alibi": True}], ids="-".join
)
def test_the_same_bits_however_cut_and_whoever_is_beside(features: dict[str, Any]) -> None:
    inputs = cached_inputs(Case("prompts", tuple((tokens, 0) for tokens in TOKENS), num_heads=6, **features))
    check_cuts(inputs, ("q", "k", "v"), get_backend("cpu").from_canonical(inputs.kv_cache))


@pytest.mark.parametrize(
    "common",
    [
        Case("alike", (), num_heads=6),
        Case("alike_in_large_pages", (), num_heads=8, page_size=256, soft_cap=5.0, sinks=True, alibi=True),
        Case("alike_in_odd_pages", (), num_heads=2, page_size=48, kv_dtype="int8", k_scale=2**-5, v_scale=2**-4),
        pytest.param(Case("alike_in_a_window", (), num_heads=2, window=200), marks=pytest.mark.exhaustive),
    ],
    ids=lambda case: case.name,
)
@settings(max_examples=15 if EVERY_CASE else 6, derandomize=True)
@given(rows=SHARING_ROWS, prefix=PREFIXES)
def test_the_same_bits_beside_rows_of_the_same_pages(common: Case, rows: list[tuple[int, int]], prefix: int) -> None:
    check_shared_pages(common, rows, prefix, make_inputs, run_function("cpu"))


def _turned(x: np.ndarray, cos: np.ndarray, sin: np.ndarray) -> jax.Array:
    """The rotary embedding of [T, heads, H]."""
    first, second = np.split(x.astype(np.float64), 2, axis=2)
    c, s = cos[:, None], sin[:, None]
    return jnp.asarray(np.concatenate([first * c - second * s, second * c + first * s], axis=2), jnp.float32)


@pytest.mark.parametrize(
    "case",
    [
        Case("merged", ((1, 5), (1, 33), (70, 3), (3, 29)), num_heads=6, padding_tokens=3, window=40, sinks=True),
        Case("merged_decodes", ((1, 5), (1, 16), (1, 200)), head_size=96, alibi=True, soft_cap=5.0),
    ],
    ids=lambda case: case.name,
)
def test_one_array_of_queries_keys_and_values_which_are_rotated_on_the_way(case: Case) -> None:
    inputs = cached_inputs(case)
    angles = np.random.default_rng(0).uniform(-4, 4, (inputs.q.shape[0], case.head_size // 2))
    cos, sin = np.cos(angles, dtype=np.float32), np.sin(angles, dtype=np.float32)
    cache = get_backend("cpu").from_canonical(inputs.kv_cache)
    turned = replace(inputs, q=_turned(np.asarray(inputs.q), cos, sin), k=_turned(np.asarray(inputs.k), cos, sin))
    wanted, wanted_cache = replace(turned, kv_cache=cache).call("cpu")
    qkv = jnp.concatenate([inputs.q, inputs.k, inputs.v], axis=1).reshape(inputs.q.shape[0], -1)
    out, found_cache = merged_attention(
        qkv,
        (jnp.asarray(cos), jnp.asarray(sin)),
        cache,
        1,
        inputs.batch,
        inputs.options,
    )
    np.testing.assert_allclose(out.reshape(wanted.shape), wanted, rtol=0, atol=5e-6)
    np.testing.assert_allclose(found_cache, wanted_cache, rtol=0, atol=1e-6)


@pytest.mark.skipif(not host_processor().multiplies_bfloat16, reason="needs AVX512-BF16 to round")
def test_merged_bfloat16_over_int8_with_scales() -> None:
    rows = ((1, 5), (70, 3), (3, 29))
    case = Case("merged_int8", rows, num_heads=6, dtype="bfloat16", kv_dtype="int8", scale_bytes=4)
    inputs = cached_inputs(case)
    angles = np.random.default_rng(0).uniform(-4, 4, (inputs.q.shape[0], case.head_size // 2))
    rotation = np.cos(angles, dtype=np.float32), np.sin(angles, dtype=np.float32)
    cache = get_backend("cpu").from_canonical(inputs.kv_cache, inputs.options.scale_bytes)
    query, key = (_turned(np.asarray(each, np.float32), *rotation) for each in (inputs.q, inputs.k))
    # Float32 from the same bfloat16: what differs is that results are rounded.
    wanted, wanted_cache = replace(inputs, q=query, k=key, v=inputs.v.astype(jnp.float32), kv_cache=cache).call("cpu")
    qkv = jnp.concatenate([inputs.q, inputs.k, inputs.v], axis=1).reshape(inputs.q.shape[0], -1)
    cos, sin = (jnp.asarray(each) for each in rotation)
    out, found_cache = merged_attention(qkv, (cos, sin), cache, 1, inputs.batch, inputs.options)
    assert out.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(out, np.float32).reshape(wanted.shape), wanted, rtol=2**-8, atol=1e-5)
    # A number of half a step may be rounded the other way, since angles were multiplied in float64.
    assert np.mean(np.asarray(found_cache) != np.asarray(wanted_cache)) < 0.01


def test_merged_wants_float32() -> None:
    inputs = cached_inputs(Case("bfloat16", ((1, 5),), dtype="bfloat16"))
    angles = jnp.zeros((1, 32))
    cache = get_backend("cpu").from_canonical(inputs.kv_cache)
    with pytest.raises(ValueError, match="float32"):
        merged_attention(inputs.q.reshape(1, -1), (angles, angles), cache, 1, inputs.batch, inputs.options)


def test_a_prompt_of_several_items_among_rows_without_tokens() -> None:
    case = Case("empties", (*((0, 0),) * 600, (500, 0)))
    check(case, *run_function("cpu")(cached_inputs(case)))
