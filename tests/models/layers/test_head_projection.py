"""Matrices of heads, in the types that models have."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxllm.models.layers.head_projection import MOST_APART, head_products
from jaxllm.models.options import ForwardOptions


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("heads", [4, MOST_APART + 1])
@pytest.mark.parametrize("transposed", [False, True])
def test_products_match_numpy(heads: int, dtype: str, *, transposed: bool) -> None:
    """Some forms of bfloat16 are beyond XLA for CPUs."""
    random = np.random.default_rng(0)
    matrices = jnp.asarray(random.standard_normal((heads, 48, 32)), dtype)
    x = jnp.asarray(random.standard_normal((8, heads, 48 if transposed else 32)), dtype)
    product = jax.jit(lambda x, matrices: head_products(x, matrices, ForwardOptions(), transposed=transposed))
    found = product(x, matrices)
    assert found.dtype == jnp.float32
    axes = "tno,noi->tni" if transposed else "tni,noi->tno"
    wanted = np.einsum(axes, np.asarray(x, np.float64), np.asarray(matrices, np.float64))
    np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-4)
