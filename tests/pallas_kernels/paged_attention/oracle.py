"""Paged attention in numpy and float64, and the comparison with it: what every backend is held to."""

import functools
from collections.abc import Callable
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.pallas_kernels.paged_attention.backend import get_backend
from jaxllm.pallas_kernels.paged_attention.cases import Case, Inputs, make_inputs, tolerance
from jaxllm.pallas_kernels.paged_attention.inputs import LAYER
from tests.quick import FAST, QUICK

Result = tuple[jax.Array, jax.Array]


@functools.cache
def run_function(implementation: str, *, is_long: bool = False) -> Callable[[Inputs], Result]:
    """`Inputs.call` of `implementation`, jitted, from and to the canonical cache.

    `is_long`: running it takes longer than compiling.
    """

    def run(inputs: Inputs) -> Result:
        page_size = inputs.kv_cache.shape[2]
        own = replace(
            inputs, kv_cache=get_backend(implementation).from_canonical(inputs.kv_cache, inputs.case.scale_bytes)
        )
        out, cache = own.call(implementation, jnp.int32(LAYER))
        return out, get_backend(implementation).to_canonical(cache, page_size, inputs.case.scale_bytes)

    return jax.jit(run, compiler_options=FAST if is_long else QUICK)


@functools.cache
def cached_inputs(case: Case) -> Inputs:
    """`make_inputs`, once for all backends. Donate none of it."""
    return make_inputs(case)


def without_writing(inputs: Inputs, kv_cache: jax.Array) -> Inputs:
    """The same of a layer that only reads the cache, in which the step's keys and values are."""
    nothing = jnp.zeros_like(inputs.k)
    return replace(inputs, case=replace(inputs.case, writes=False), k=nothing, v=nothing, kv_cache=kv_cache)


def _stored(values: np.ndarray, scale: float | None, dtype: np.dtype) -> np.ndarray:
    """Values as the cache stores them. Dividing in float32 as the backends do, so that no rounding falls otherwise."""
    values = values.astype(np.float32) / np.float32(1 if scale is None else scale)
    integers = jnp.issubdtype(dtype, jnp.integer)
    values = np.rint(values) if integers else values
    limits = jnp.iinfo(dtype) if integers else jnp.finfo(dtype)
    return np.clip(values, float(limits.min), float(limits.max)).astype(dtype).astype(np.float64)


def _stored_with_scales(values: np.ndarray, scale_bytes: int) -> np.ndarray:
    """Values in int8, and after each head the bits of its scale, as float32."""
    values = values.astype(np.float32)
    largest = np.abs(values).max(axis=-1, keepdims=True)
    scales = largest * np.float32(1 / 127)
    numbers = np.rint(values * (np.float32(127) / largest)).astype(np.int8)
    unused = np.zeros((*values.shape[:-1], scale_bytes - 4), np.int8)
    return np.concatenate([numbers, scales.view(np.int8), unused], axis=-1).astype(np.float64)


def _heads(case: Case, stored: np.ndarray) -> np.ndarray:
    """Stored heads [..., H + scale bytes] times the scale after each, or as they are where there is none."""
    if not case.scale_bytes:
        return stored
    scales = np.ascontiguousarray(stored[..., case.head_size :][..., :4].astype(np.int8)).view(np.float32)
    return stored[..., : case.head_size] * scales.astype(np.float64)


@functools.cache
def expected(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Result [tokens, N, H] without padding, and the cache of `LAYER`, [P, C, 2K, H], after the step."""
    inputs = cached_inputs(case)
    cache = np.asarray(inputs.kv_cache[LAYER]).astype(np.float64)
    table = np.asarray(inputs.batch.page_table)
    q = np.asarray(inputs.q).astype(np.float64)
    keys_and_values = [np.asarray(inputs.k), np.asarray(inputs.v)]
    new_keys, new_values = (
        _stored_with_scales(values, case.scale_bytes) if case.scale_bytes else _stored(values, scale, case.cache_dtype)
        for values, scale in zip(keys_and_values, (case.k_scale, case.v_scale), strict=True)
    )
    out = np.zeros((case.num_tokens, *q.shape[1:]))
    token = 0
    for row, (new, computed) in enumerate(case.rows):
        positions = np.arange(computed, computed + new)
        tokens = slice(token, token + new)
        pages, offsets = table[row, positions // case.page_size], positions % case.page_size
        cache[pages, offsets, 0::2] = new_keys[tokens]
        cache[pages, offsets, 1::2] = new_values[tokens]
        context = _heads(case, cache[table[row]].reshape(-1, *cache.shape[2:])[: computed + new])
        for head in range(case.num_heads):
            ends = positions + 1 + _seen_ahead(case, row, positions)
            out[tokens, head] = _attend(case, inputs, head, q[tokens, head], context, positions, ends)
        token += new
    return out, cache


def _seen_ahead(case: Case, row: int, positions: np.ndarray) -> np.ndarray:
    """How many later tokens those at `positions` of a row see."""
    ahead = np.zeros_like(positions)
    for number, begin, end in case.spans:
        if number == row:
            ahead += np.where((begin <= positions) & (positions < end), end - 1 - positions, 0)
    return ahead


def _attend(
    case: Case,
    inputs: Inputs,
    head: int,
    queries: np.ndarray,
    context: np.ndarray,
    positions: np.ndarray,
    ends: np.ndarray,
) -> np.ndarray:
    """One head of one row, whose tokens see keys up to `ends`."""
    kv_head = head // (case.num_heads // case.num_kv_heads)
    keys = context[:, 2 * kv_head] * (case.k_scale or 1)
    values = context[:, 2 * kv_head + 1] * (case.v_scale or 1)
    distances = np.arange(len(keys)) - positions[:, None]
    scores = queries @ keys.T * case.head_size**-0.5
    if case.soft_cap is not None:
        scores = case.soft_cap * np.tanh(scores / case.soft_cap)
    if inputs.alibi_slopes is not None:
        scores += float(inputs.alibi_slopes[head]) * distances
    visible = np.arange(len(keys)) < ends[:, None]
    if case.window:
        visible &= distances > -case.window
    if case.chunk:
        visible &= np.arange(len(keys)) >= positions[:, None] // case.chunk * case.chunk
    weights = np.exp(np.where(visible, scores, -np.inf))
    sink = 0 if inputs.sinks is None else np.exp(float(inputs.sinks[head]))
    return weights @ values / (weights.sum(axis=1, keepdims=True) + sink)


def check(case: Case, out: jax.Array, cache: jax.Array) -> None:
    """Asserts that `out` [T, N, H] and the canonical `cache` are those of `case`, run over `LAYER`."""
    expected_out, expected_cache = expected(case)
    assert out.dtype == case.dtype
    assert cache.dtype == case.cache_dtype
    got = np.asarray(out).astype(np.float64)
    assert np.isfinite(got).all()
    np.testing.assert_allclose(got[: case.num_tokens], expected_out, rtol=0, atol=tolerance(case))
    # Page 0 belongs to nobody: padding may write it.
    before, after = np.asarray(cached_inputs(case).kv_cache), np.asarray(cache)
    np.testing.assert_array_equal(after[LAYER, 1:].astype(np.float64), expected_cache[1:])
    others = [layer for layer in range(case.layers) if layer != LAYER]
    np.testing.assert_array_equal(after[others, 1:].view(np.uint8), before[others, 1:].view(np.uint8))
