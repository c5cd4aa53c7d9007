"""Normalisation by root mean square (arXiv 1910.07467), and by mean and variance (arXiv 1607.06450)."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from jaxllm.models.layers.parameter import parameter
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import sharding
from jaxllm.pallas_kernels.linear import Norm


class RMSNorm(nnx.Module):
    """Scale the last axis to unit mean square, then by `weight` [size]. Computes in float32."""

    def __init__(self, size: int, eps: float, *, dtype: jnp.dtype, options: ForwardOptions) -> None:
        self.weight = parameter((size,), dtype, sharding(options.mesh, None))
        self.eps = eps

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalise `x` [..., size]; the type stays."""
        return self.norm(x)

    @property
    def norm(self) -> Norm:
        """The same as an operand of a product that takes it over."""
        return Norm(self.weight[...], self.eps)


class LayerNorm(nnx.Module):
    """Shift and scale the last axis to mean 0 and variance 1, then by `weight` and `bias` [size]. In float32."""

    def __init__(
        self, size: int, eps: float, *, dtype: jnp.dtype, options: ForwardOptions, use_bias: bool = True
    ) -> None:
        self.weight = parameter((size,), dtype, sharding(options.mesh, None))
        self.bias = parameter((size,), dtype, sharding(options.mesh, None)) if use_bias else None
        self.eps = eps

    def __call__(self, x: jax.Array) -> jax.Array:
        """Normalise `x` [..., size]; the type stays."""
        wide = x.astype(jnp.float32)
        centred = wide - jnp.mean(wide, axis=-1, keepdims=True)
        scale = lax.rsqrt(jnp.mean(centred * centred, axis=-1, keepdims=True) + self.eps)
        out = centred * scale * self.weight[...].astype(jnp.float32)
        if self.bias is not None:
            out = out + self.bias[...].astype(jnp.float32)
        return out.astype(x.dtype)
