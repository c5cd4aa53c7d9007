"""Learned factors on the frequencies of a rotary embedding (LeRoPE, in Mistral Large 4)."""

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.layers.parameter import parameter
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import sharding


class LearnedFrequencies(nnx.Module):
    """`alpha` [pairs], whose exponentials multiply the frequencies of pairs."""

    def __init__(self, pairs: int, options: ForwardOptions) -> None:
        self.alpha = parameter((pairs,), jnp.dtype(jnp.float32), sharding(options.mesh, None))

    @property
    def factors(self) -> jax.Array:
        """float32 [pairs]."""
        return jnp.exp(self.alpha[...])
