"""The matrix product, on both sides of the row count where its operands change places."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxllm.models.layers.linear import WEIGHT_LEFT_ROWS, Linear
from jaxllm.models.options import ForwardOptions


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
@pytest.mark.parametrize("rows", [1, WEIGHT_LEFT_ROWS, WEIGHT_LEFT_ROWS + 1])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_linear(rows: int, platform: str, dtype: str) -> None:
    random = np.random.default_rng(0)
    x, weight, bias = (jnp.asarray(random.normal(size=s), dtype) for s in ((rows, 48), (24, 48), (24,)))
    options = ForwardOptions(platform=platform)
    layer = Linear(48, 24, bias=True, dtype=jnp.dtype(dtype), axes=("mlp", "hidden"), options=options)
    nnx.update(layer, nnx.State({"weight": nnx.Param(weight), "bias": nnx.Param(bias)}))
    out = layer(x)
    assert out.shape == (rows, 24)
    assert out.dtype == dtype
    wanted = np.asarray(x, np.float64) @ np.asarray(weight, np.float64).T + np.asarray(bias, np.float64)
    # Accumulated in float32: the only loss is the rounding of the result.
    np.testing.assert_allclose(np.asarray(out, np.float64), wanted, rtol=float(jnp.finfo(dtype).eps), atol=1e-4)
