"""Matrix products with weights kept as checkpoints have them, (out, in)."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from jaxllm.models.layers.parameter import parameter

WEIGHT_LEFT_ROWS = 64
"""Up to this many rows XLA's CPU matmul is 2 to 4 times faster with the weight as its left operand (measured)."""


def matmul(x: jax.Array, weight: jax.Array, platform: str) -> jax.Array:
    """`x [T, in]` times `weight [out, in]` transposed: float32 [T, out]."""
    if platform == "cpu" and x.shape[0] <= WEIGHT_LEFT_ROWS:
        return lax.dot_general(weight, x, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32).T
    return lax.dot_general(x, weight, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)


class Linear(nnx.Module):
    """`weight` [out, in] and, if asked for, `bias` [out]. Accumulates in float32, returns the type of its input."""

    def __init__(self, in_size: int, out_size: int, *, bias: bool, dtype: jnp.dtype, platform: str) -> None:
        self.weight = parameter((out_size, in_size), dtype)
        self.bias = parameter((out_size,), dtype) if bias else None
        self.platform = platform

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map `x` [T, in] to [T, out]."""
        out = matmul(x, self.weight[...], self.platform)
        if self.bias is not None:
            out = out + self.bias[...].astype(jnp.float32)
        return out.astype(x.dtype)
