"""Attention over a cache of bfloat16 that is multiplied as it is: every case, and the same bits in any company."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from jaxllm.pallas_kernels.cpu_common.processor import host_processor
from jaxllm.pallas_kernels.paged_attention.backend import get_backend
from jaxllm.pallas_kernels.paged_attention.cases import CASES, Case, make_inputs
from jaxllm.pallas_kernels.paged_attention.cpu.pairs import from_pairs, merged_pairs, to_pairs
from tests.pallas_kernels.cut_prompts import PREFIXES, SHARING_ROWS, TOKENS, check_cuts, check_shared_pages
from tests.pallas_kernels.paged_attention.oracle import cached_inputs, check, run_function, without_writing

pytestmark = pytest.mark.skipif(not host_processor().multiplies_bfloat16, reason="the processor has no AVX512-BF16")

PAIRS = partial(Case, dtype="bfloat16")
FEATURES: list[dict[str, Any]] = [{}, {"window": 40}, {"sinks": True, "soft_cap": 5.0, "alibi": True}]


def _cases() -> list[Case]:
    """Every case, its types made bfloat16; those that become the same only once."""
    found: dict[Case, Case] = {}
    for case in CASES:
        if not case.scale_bytes:
            own = replace(case, dtype="bfloat16", kv_dtype=None)
            found.setdefault(replace(own, name=""), own)
    return list(found.values())


@pytest.mark.parametrize("case", _cases(), ids=lambda case: case.name)
def test_matches_numpy(case: Case) -> None:
    check(case, *run_function("cpu_pairs")(cached_inputs(case)))


def test_a_cache_becomes_pairs_and_back() -> None:
    cache = cached_inputs(PAIRS("shape", ((1, 20), (17, 9)), head_size=32)).kv_cache
    np.testing.assert_array_equal(from_pairs(to_pairs(cache), cache.shape[2]), cache)


@pytest.mark.parametrize("features", FEATURES, ids="-".join)
def test_the_same_bits_however_cut_and_whoever_is_beside(features: dict[str, Any]) -> None:
    inputs = cached_inputs(PAIRS("prompts", tuple((tokens, 0) for tokens in TOKENS), num_heads=6, **features))
    check_cuts(inputs, ("q", "k", "v"), to_pairs(inputs.kv_cache), "cpu_pairs")


@pytest.mark.parametrize(
    "common",
    [
        PAIRS("alike_in_large_pages", (), num_heads=8, page_size=256, soft_cap=5.0, sinks=True, alibi=True),
        PAIRS("alike_in_odd_pages", (), num_heads=2, page_size=48, window=200),
    ],
    ids=lambda case: case.name,
)
@settings(max_examples=5, derandomize=True)
@given(rows=SHARING_ROWS, prefix=PREFIXES)
def test_the_same_bits_beside_rows_of_the_same_pages(common: Case, rows: list[tuple[int, int]], prefix: int) -> None:
    check_shared_pages(common, rows, prefix, make_inputs, run_function("cpu_pairs"))


@pytest.mark.parametrize(
    "case",
    [
        PAIRS("merged", ((1, 5), (1, 33), (70, 3), (3, 29)), num_heads=6, padding_tokens=3, window=40, sinks=True),
        PAIRS("merged_decodes", ((1, 5), (1, 16), (1, 200)), head_size=96, alibi=True, soft_cap=5.0),
    ],
    ids=lambda case: case.name,
)
def test_one_array_of_queries_keys_and_values_which_are_rotated_on_the_way(case: Case) -> None:
    inputs = cached_inputs(case)
    angles = np.random.default_rng(0).uniform(-4, 4, (inputs.q.shape[0], case.head_size // 2))
    cos, sin = np.cos(angles, dtype=np.float32), np.sin(angles, dtype=np.float32)
    turned = replace(inputs, q=_turned(inputs.q, cos, sin), k=_turned(inputs.k, cos, sin))
    cache = to_pairs(inputs.kv_cache)
    wanted, wanted_cache = replace(turned, kv_cache=cache).call("cpu_pairs")
    qkv = jnp.concatenate([inputs.q, inputs.k, inputs.v], axis=1).reshape(inputs.q.shape[0], -1)
    rotation = jnp.asarray(cos), jnp.asarray(sin)
    out, found_cache = merged_pairs(qkv, rotation, cache, 1, inputs.batch, inputs.options)
    # Queries that are not rounded between rotation and scale differ by half of a last place.
    found, expected = (np.asarray(each, np.float32).reshape(wanted.shape) for each in (out, wanted))
    np.testing.assert_allclose(found, expected, rtol=0, atol=2e-2)
    found, expected = (np.asarray(each, np.float32) for each in (found_cache, wanted_cache))
    np.testing.assert_allclose(found, expected, rtol=2**-7, atol=1e-30)


def _turned(x: Any, cos: np.ndarray, sin: np.ndarray) -> Any:
    """The rotary embedding of [T, heads, H]."""
    first, second = np.split(np.asarray(x).astype(np.float32), 2, axis=2)
    c, s = cos[:, None], sin[:, None]
    return jnp.asarray(np.concatenate([first * c - second * s, second * c + first * s], axis=2), x.dtype)


def test_layers_read_what_an_earlier_one_has_written() -> None:
    case = PAIRS("read_again", ((1, 5), (1, 33), (7, 0), (70, 3), (3, 29)), head_size=32, window=40, padding_tokens=5)
    inputs = cached_inputs(case)
    wanted, cache = run_function("cpu_pairs")(inputs)
    found, after = run_function("cpu_pairs")(without_writing(inputs, cache))
    np.testing.assert_array_equal(found, wanted)
    np.testing.assert_array_equal(after[:, 1:], cache[:, 1:])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_stays_in_its_request(bad: float) -> None:
    inputs = cached_inputs(PAIRS("nan", ((1, 5), (3, 4))))
    bad_k, bad_v = (x.at[0].set(bad) for x in (inputs.k, inputs.v))
    run = run_function("cpu_pairs")
    out, cache = run(replace(inputs, k=bad_k, v=bad_v))
    good, _ = run(inputs)
    np.testing.assert_array_equal(out[1:], good[1:])
    assert np.isfinite(np.float32(cache)).all()


def test_other_caches_are_refused() -> None:
    inputs = cached_inputs(Case("float32", ((1, 5),)))
    with pytest.raises(NotImplementedError, match="float32: only bfloat16"):
        get_backend("cpu_pairs").call(
            inputs.q, inputs.k, inputs.v, jnp.zeros((1, 4, 2, 2, 256)), 0, inputs.batch, inputs.options
        )
