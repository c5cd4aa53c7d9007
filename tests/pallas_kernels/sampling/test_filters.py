"""Thresholds found without sorting keep the same tokens as sorting does."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from jaxllm.pallas_kernels.sampling.filters import softmax_weights, top_k_threshold, top_p_threshold

ROWS, VOCAB = 3, 61
top_k_of = jax.jit(top_k_threshold)
top_p_of = jax.jit(top_p_threshold)

LIMIT = float(np.finfo(np.float32).max)
# Subnormal numbers are flushed to zero on the way, so they all tie with it.
ANY_LOGIT = (
    st.floats(-LIMIT, LIMIT, width=32, allow_subnormal=False) | st.just(-np.inf) | st.sampled_from([0.0, 1.0, -100.0])
)
LIKELY_LOGIT = st.floats(-20, 20, width=32, allow_subnormal=False)


@settings(max_examples=300, deadline=None)
@given(
    logits=arrays(np.float32, (ROWS, VOCAB), elements=ANY_LOGIT)
    | arrays(np.float32, (ROWS, VOCAB), elements=LIKELY_LOGIT),
    top_k=arrays(np.int32, ROWS, elements=st.integers(0, VOCAB + 5)),
)
def test_top_k_keeps_what_sorting_keeps(logits: np.ndarray, top_k: np.ndarray) -> None:
    thresholds = np.asarray(top_k_of(jnp.asarray(logits), jnp.asarray(top_k)))
    for row, k, threshold in zip(logits, top_k, thresholds, strict=True):
        kept = row >= threshold
        last = np.sort(row)[-k] if 0 < k <= VOCAB else -np.inf
        np.testing.assert_array_equal(kept, (row >= last) & (row > -np.inf))


@pytest.mark.parametrize("scale", [1e-30, 1e-3, 1.0, 1e4, 1e35])
@pytest.mark.parametrize("shift", [0.0, 1.0, -50.0])
def test_top_k_keeps_exactly_k_distinct_values(scale: float, shift: float) -> None:
    random = np.random.default_rng(1)
    logits = np.stack(
        [np.unique(((random.normal(size=4000) + shift) * scale).astype(np.float32))[-3500:] for _ in range(8)]
    )
    top_k = np.array([1, 2, 5, 50, 500, 3000, 3499, 3500], np.int32)
    thresholds = top_k_of(jnp.asarray(random.permuted(logits, axis=1)), jnp.asarray(top_k))
    np.testing.assert_array_equal((logits >= np.asarray(thresholds)[:, None]).sum(1), top_k)


def assert_smallest_set(weights: np.ndarray, top_p: float, threshold: float) -> None:
    """The kept tokens make up `top_p`, and would not without the least likely of them; rounding aside."""
    weights = weights.astype(np.float64)
    kept = weights >= threshold
    tolerance = 2e-6 * weights.sum()
    assert kept.any()
    assert weights[kept].sum() >= top_p * weights.sum() - tolerance
    smaller = weights > weights[kept].min()
    assert weights[smaller].sum() < top_p * weights.sum() + tolerance


@settings(max_examples=300, deadline=None)
@given(
    weights=arrays(np.float32, (ROWS, VOCAB), elements=st.floats(0, 1, width=32, allow_subnormal=False))
    | arrays(np.float32, (ROWS, VOCAB), elements=st.sampled_from([0.0, 0.25, 0.5, 1.0])),
    top_p=arrays(np.float32, ROWS, elements=st.floats(2.0**-20, 1, width=32, exclude_max=True)),
)
def test_top_p_keeps_the_smallest_set(weights: np.ndarray, top_p: np.ndarray) -> None:
    weights[:, 17] = 1.0
    thresholds = np.asarray(top_p_of(jnp.asarray(weights), jnp.asarray(top_p)))
    for row, p, threshold in zip(weights, top_p, thresholds, strict=True):
        assert_smallest_set(row, float(p), float(threshold))


@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
def test_top_p_of_a_large_vocabulary(temperature: float) -> None:
    random = np.random.default_rng(2)
    logits = (random.normal(size=(6, 30_000)) * 3).astype(np.float32)
    weights = softmax_weights(jnp.asarray(logits), jnp.max(logits, 1), jnp.full(6, temperature))
    top_p = np.array([0.01, 0.5, 0.9, 0.99, 0.9999, 1.0], np.float32)
    thresholds = np.asarray(top_p_of(weights, jnp.asarray(top_p)))
    for row, p, threshold in zip(np.asarray(weights), top_p, thresholds, strict=True):
        assert_smallest_set(row, float(p), float(threshold))
    assert thresholds[-1] == 0


@pytest.mark.parametrize(
    ("weights", "top_p", "threshold"),
    [
        ([1.0, 0.5, 0.25, 0.25], 0.75, 0.5),
        ([1.0, 0.5, 0.25, 0.25], 0.5, 1.0),
        ([1.0, 1.0, 1.0, 1.0], 0.25, 1.0),
        ([1.0, 0.5, 0.25, 0.125, 0.0625, 0.0625], 0.9375, 0.125),
        ([1.0, 0.75, 0.25], 0.875, 0.75),
    ],
)
def test_top_p_that_is_reached_exactly_keeps_nothing_more(weights: list[float], top_p: float, threshold: float) -> None:
    """All sums are exact in float32: no rounding decides."""
    rest = VOCAB - len(weights)
    row = np.array([*weights, *[0.0] * rest], np.float32)
    (found,) = np.asarray(top_p_of(jnp.asarray(row[None]), jnp.array([top_p], jnp.float32)))
    np.testing.assert_array_equal(row >= found, row >= threshold)


def test_top_p_keeps_all_ties() -> None:
    thresholds = top_p_of(jnp.ones((ROWS, VOCAB)), jnp.array([0.01, 0.5, 0.99]))
    np.testing.assert_array_equal(thresholds, 1.0)


def test_weights_at_the_edges_of_float32() -> None:
    logits = jnp.array([[LIMIT, -LIMIT, 0.0], [-np.inf, -np.inf, -np.inf], [np.inf, 0.0, -np.inf], [1.0, 2.0, 3.0]])
    weights = np.asarray(softmax_weights(logits, jnp.max(logits, 1), jnp.array([1e-5, 1.0, 1.0, 0.0])))
    np.testing.assert_array_equal(weights[:3], [[1, 0, 0], [0, 0, 0], [1, 0, 0]])
    np.testing.assert_allclose(weights[3], np.exp([-2.0, -1.0, 0.0]), rtol=1e-6)
