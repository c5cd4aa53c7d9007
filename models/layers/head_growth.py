"""Queries of heads that grow with their position, by learned factors."""

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.layers.parameter import parameter
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import sharding


class HeadGrowth(nnx.Module):
    """Factors of heads at position p: scale * log(p + 1) + bias, as in Mistral Large 4. `axis` is that of the heads."""

    def __init__(self, heads: int, options: ForwardOptions, axis: str | None = "heads") -> None:
        exact, where = jnp.dtype(jnp.float32), sharding(options.mesh, axis)
        self.scale, self.bias = parameter((heads,), exact, where), parameter((heads,), exact, where)

    def __call__(self, x: jax.Array, positions: jax.Array) -> jax.Array:
        """`x` [T, heads, H] times the factors, at `positions` int32 [T]; the type stays."""
        far = jnp.log(positions.astype(jnp.float32) + 1.0)
        return (x * (self.scale[...] * far[:, None] + self.bias[...])[..., None]).astype(x.dtype)
