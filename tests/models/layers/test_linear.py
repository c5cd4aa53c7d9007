"""The matrix product of each platform."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from jaxllm.models.forward_context import ALL_ROWS
from jaxllm.models.layers.linear import Linear
from jaxllm.models.options import ForwardOptions
from jaxllm.pallas_kernels.linear import RowMajor, Weight, linear


@pytest.mark.parametrize("platform", ["cpu", "tpu"])
@pytest.mark.parametrize("rows", [1, 2, 65])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_linear(rows: int, platform: str, dtype: str) -> None:
    random = np.random.default_rng(0)
    x, weight, bias = (jnp.asarray(random.normal(size=s), dtype) for s in ((rows, 48), (24, 48), (24,)))
    options = ForwardOptions(platform=platform)
    layer = Linear(48, 24, bias=True, dtype=jnp.dtype(dtype), axes=("mlp", "hidden"), options=options)
    nnx.update(layer, nnx.State({"weight": nnx.Param(weight), "bias": nnx.Param(bias)}))
    out = layer(x, ALL_ROWS)
    assert out.shape == (rows, 24)
    assert out.dtype == dtype
    wanted = np.asarray(x, np.float64) @ np.asarray(weight, np.float64).T + np.asarray(bias, np.float64)
    # Accumulated in float32: the only loss is the rounding of the result.
    np.testing.assert_allclose(np.asarray(out, np.float64), wanted, rtol=float(jnp.finfo(dtype).eps), atol=1e-4)


def test_the_weight_stays_on_the_left_on_cpu() -> None:
    """XLA would fold the transposes between two products into them, and exchange the operands again."""
    up, down = (Weight(RowMajor(shape), jnp.ones(shape, jnp.float32)) for shape in ((48, 16), (16, 48)))

    def both(x: jax.Array) -> jax.Array:
        return linear(jax.nn.silu(linear(x, up)), down)

    compiled = jax.jit(both).lower(jnp.ones((4, 16), jnp.float32)).compile().as_text()
    assert sorted(re.findall(r"f32\[(\d+,\d+)\]\S* dot\(", compiled or "")) == ["16,4", "48,4"]
