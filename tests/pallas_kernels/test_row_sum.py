"""A row's sum has the same bits among any number of rows, whatever stands before and after it."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm.executor.sampler.logprobs import gather_logprobs
from jaxllm.models.layers.norm import LayerNorm
from jaxllm.models.norm_plan import NormPlan
from jaxllm.pallas_kernels.linear import Norm
from jaxllm.pallas_kernels.row_sum import row_sum, sum_of_squares
from tests.thinned import thinned

ROWS = thinned((1, 8, 128), (2, 32))
SIZES = (7, 96, 128, 768)


def norm(x: jax.Array) -> jax.Array:
    return Norm(jnp.cos(jnp.arange(x.shape[1], dtype=jnp.float32)), 1e-5)(x)


def layer_norm(x: jax.Array) -> jax.Array:
    return LayerNorm(None, None, NormPlan(kind="layer", eps=1e-5, weight=False))(x)


def logprobs(x: jax.Array) -> jax.Array:
    return gather_logprobs(x, jnp.zeros(len(x), jnp.int32), 1).top_logprobs


def scaled(x: jax.Array) -> jax.Array:
    return row_sum(x * jnp.float32(1.1)) + 1


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("function", [norm, layer_norm, logprobs, scaled], ids=lambda function: function.__name__)
def test_rows_do_not_depend_on_each_other(function: Callable[[jax.Array], jax.Array], size: int) -> None:
    x = np.random.default_rng(size).normal(size=(max(ROWS), size)).astype(np.float32)
    compiled = jax.jit(function)
    whole = np.asarray(compiled(x))
    for rows in ROWS:
        np.testing.assert_array_equal(np.asarray(compiled(x[:rows])), whole[:rows], strict=True)


@pytest.mark.parametrize("size", SIZES)
def test_they_are_sums(size: int) -> None:
    x = np.random.default_rng(size).normal(size=(5, size)).astype(np.float32)
    np.testing.assert_allclose(row_sum(jnp.asarray(x)), x.sum(axis=1, keepdims=True), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(sum_of_squares(jnp.asarray(x)), (x * x).sum(axis=1, keepdims=True), rtol=1e-5)
