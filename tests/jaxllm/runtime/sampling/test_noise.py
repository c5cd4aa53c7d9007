"""Draws are uniform, repeatable, and never hit what has no probability."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import stats

from jaxllm.runtime.sampling.noise import _invert, draw, uniforms

ROWS, VOCAB = 4, 150
draw_of = jax.jit(draw)


@pytest.mark.parametrize("along", ["seed", "step"])
def test_uniforms_are_uniform(along: str) -> None:
    numbers, zero = jnp.arange(20_000), jnp.zeros(20_000, jnp.int32)
    chance = np.asarray(uniforms(numbers, zero) if along == "seed" else uniforms(zero, numbers))
    assert chance.min() >= 0
    assert chance.max() < 1
    for column in chance.T:
        assert stats.kstest(column, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(chance.T)[0, 1]) < 0.03
    assert abs(np.corrcoef(chance[:-1, 0], chance[1:, 0])[0, 1]) < 0.03


def test_uniforms_depend_on_seed_and_step_only() -> None:
    seed, step = jnp.array([1, -2, 3, 1]), jnp.array([0, 5, 9, 0])
    chance = np.asarray(uniforms(seed, step))
    np.testing.assert_array_equal(chance[0], chance[3])
    for row in range(4):
        np.testing.assert_array_equal(uniforms(seed[row : row + 1], step[row : row + 1])[0], chance[row])


@settings(max_examples=200, deadline=None)
@given(
    weights=arrays(
        np.float32,
        (ROWS, VOCAB),
        elements=st.just(0.0) | st.floats(2.0**-60, 1, width=32, allow_subnormal=False),
        fill=st.just(0.0),
    ),
    seed=arrays(np.int32, ROWS, elements=st.integers(-(2**31), 2**31 - 1)),
)
def test_weight_zero_is_never_drawn(weights: np.ndarray, seed: np.ndarray) -> None:
    tokens = np.asarray(draw_of(jnp.asarray(weights), jnp.asarray(seed), jnp.zeros(ROWS, jnp.int32)))
    assert ((tokens >= 0) & (tokens < VOCAB)).all()
    possible = weights.any(1)
    assert (weights[np.arange(ROWS), tokens][possible] > 0).all()


@pytest.mark.parametrize("chance", [0.0, 0.5, 1 - 2.0**-24, 1.0])
def test_the_ends_of_the_cumulated_weights(chance: float) -> None:
    weights = jnp.zeros((1, 9)).at[0, 2].set(1e-30).at[0, 5].set(1.0)
    index = int(_invert(weights, jnp.array([chance]))[0])
    assert index == (2 if chance == 0.0 else 5)
