"""Draws never hit what has no probability."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from jaxllm.executor.sampler.noise import uniforms
from jaxllm.pallas_kernels.sampling.xla import _invert, draw

ROWS, VOCAB = 4, 150
draw_of = jax.jit(draw)


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
    chance = uniforms(jnp.asarray(seed), jnp.zeros(ROWS, jnp.int32))
    tokens = np.asarray(draw_of(jnp.asarray(weights), chance))
    assert ((tokens >= 0) & (tokens < VOCAB)).all()
    possible = weights.any(1)
    assert (weights[np.arange(ROWS), tokens][possible] > 0).all()


@pytest.mark.parametrize("chance", [0.0, 0.5, 1 - 2.0**-24, 1.0])
def test_the_ends_of_the_cumulated_weights(chance: float) -> None:
    weights = jnp.zeros((1, 9)).at[0, 2].set(1e-30).at[0, 5].set(1.0)
    index = int(_invert(weights, jnp.array([chance]))[0])
    assert index == (2 if chance == 0.0 else 5)
