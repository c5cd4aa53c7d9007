"""The random numbers of rows are uniform, and repeatable."""

import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from jaxllm.executor.sampler.noise import uniforms


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
