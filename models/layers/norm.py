"""Root-mean-square normalisation (arXiv 1910.07467)."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from jaxllm.models.layers.parameter import parameter
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import sharding


class RMSNorm(nnx.Module):
    """Scale the last axis to unit mean square, then by `weight` [size]. Computes in float32."""

    def __init__(self, size: int, eps: float, *, dtype: jnp.dtype, options: ForwardOptions) -> None:
        self.weight = parameter((size,), dtype, sharding(options.mesh, None))
        self.eps = eps

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalise `x` [..., size]; the type stays."""
        wide = x.astype(jnp.float32)
        scale = lax.rsqrt(jnp.mean(wide * wide, axis=-1, keepdims=True) + self.eps)
        return (wide * scale * self.weight[...].astype(jnp.float32)).astype(x.dtype)
