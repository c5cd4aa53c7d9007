"""Latent attention in numpy and float64, and the comparison with it: what every backend is held to."""

import functools
from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.pallas_kernels.latent_attention import get_latent_backend
from jaxllm.pallas_kernels.latent_attention.cases import LAYER, Case, Inputs, make_inputs, tolerance
from tests.quick import QUICK

Result = tuple[jax.Array, jax.Array]


@functools.cache
def run_function(implementation: str) -> Callable[[Inputs], Result]:
    """`Inputs.call` of `implementation`, jitted, from and to the canonical cache."""
    backend = get_latent_backend(implementation)

    def run(inputs: Inputs) -> Result:
        own = replace(inputs, kv_cache=backend.from_canonical(inputs.kv_cache, inputs.case.sizes))
        out, cache = own.call(implementation, jnp.int32(LAYER))
        return out, backend.to_canonical(cache, inputs.case.sizes)

    return jax.jit(run, compiler_options=QUICK)


@functools.cache
def cached_inputs(case: Case) -> Inputs:
    """`make_inputs`, once for all backends. Donate none of it."""
    return make_inputs(case)


@functools.cache
def expected(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Result [tokens, N, Z] without padding, and the cache of `LAYER`, [P, C, Z + Y], after the step."""
    inputs = cached_inputs(case)
    cache = np.asarray(inputs.kv_cache[LAYER]).astype(np.float64)
    table = np.asarray(inputs.batch.page_table)
    queries, new = (
        np.concatenate([np.asarray(part).astype(np.float64) for part in parts], axis=-1)
        for parts in ((inputs.q_latent, inputs.q_rope), (inputs.latent, inputs.k_rope))
    )
    out = np.zeros((case.num_tokens, case.num_heads, case.latent_size))
    token = 0
    for row, (count, computed) in enumerate(case.rows):
        positions, tokens = np.arange(computed, computed + count), slice(token, token + count)
        cache[table[row, positions // case.page_size], positions % case.page_size] = new[tokens]
        keys = cache[table[row]].reshape(-1, cache.shape[-1])[: computed + count]
        scores = np.einsum("tns,ks->ntk", queries[tokens], keys, optimize=True) * case.scale
        places, window = np.arange(len(keys)), case.window or len(keys)
        is_seen = (places <= positions[:, None]) & (places > positions[:, None] - window)
        weights = np.exp(np.where(is_seen, scores, -np.inf))
        weighted = np.einsum("ntk,kz->tnz", weights, keys[:, : case.latent_size], optimize=True)
        sinks = 0.0 if inputs.sinks is None else np.exp(np.asarray(inputs.sinks, np.float64))
        out[tokens] = weighted / (weights.sum(axis=-1).T + sinks)[..., None]
        token += count
    return out, cache


def check(case: Case, out: jax.Array, cache: jax.Array) -> None:
    """Asserts that `out` [T, N, Z] and the canonical `cache` are those of `case`, run over `LAYER`."""
    expected_out, expected_cache = expected(case)
    assert out.dtype == cache.dtype == case.dtype
    got = np.asarray(out).astype(np.float64)
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got[: case.num_tokens], expected_out, rtol=0, atol=tolerance(case))
    # Page 0 belongs to nobody: padding may write it.
    before, after = np.asarray(cached_inputs(case).kv_cache), np.asarray(cache)
    np.testing.assert_array_equal(after[LAYER, 1:].astype(np.float64), expected_cache[1:])
    others = [layer for layer in range(case.layers) if layer != LAYER]
    np.testing.assert_array_equal(after[others, 1:].view(np.uint8), before[others, 1:].view(np.uint8))
