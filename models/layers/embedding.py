"""Token embedding, which may also serve as the output layer."""

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.layers.parameter import parameter


class Embedding(nnx.Module):
    """`weight` [V, D], one row per token."""

    def __init__(self, vocab_size: int, hidden_size: int, *, dtype: jnp.dtype) -> None:
        self.weight = parameter((vocab_size, hidden_size), dtype)

    def __call__(self, token_ids: jax.Array) -> jax.Array:
        """Rows [T, D] of `token_ids` int32 [T]."""
        return jnp.take(self.weight[...], token_ids, axis=0, mode="clip")
