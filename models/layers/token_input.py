"""Embeddings of tokens that each layer has for itself (Gemma 3n, Gemma 4), and how a layer adds its own."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.config import ModelConfig
from jaxllm.models.forward_context import ForwardContext
from jaxllm.models.layers.activation import find_activation
from jaxllm.models.layers.embedding import Embedding
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.options import ForwardOptions
from jaxllm.models.plan import EmbeddingPlan, TokenInputPlan, TokenInputsPlan


class TokenInputs(nnx.Module):
    """Token inputs of all layers: one table and one product, see `TokenInputsPlan`."""

    def __init__(
        self, config: ModelConfig, plan: TokenInputsPlan, options: ForwardOptions, *, dtype: jnp.dtype
    ) -> None:
        size = config.num_layers * plan.size
        table = replace(config, vocab_size=plan.vocab_size, embedding=EmbeddingPlan(size=size))
        self.table = Embedding(table, options, dtype=dtype)
        project = partial(Linear, config.hidden_size, size, bias=False, axes=(None, "hidden"))
        self.projection = project(dtype=dtype, options=options)
        self.norm = make_norm(plan.norm, plan.size, dtype=dtype, options=options)
        self.plan, self.projection_scale = plan, config.hidden_size**-0.5

    def __call__(self, token_ids: jax.Array, x: jax.Array, context: ForwardContext) -> jax.Array:
        """[L, T, size] of `token_ids` int32 [T] and what the first layer gets, `x` [T, D]."""
        plan = self.plan
        rows = self.table(jnp.where(token_ids < plan.vocab_size, token_ids, 0))
        rows = rows * jnp.asarray(plan.size**0.5, rows.dtype)
        projected = self.projection(x, context) * jnp.asarray(self.projection_scale, x.dtype)
        shape = (len(token_ids), -1, plan.size)
        both = self.norm(projected.reshape(shape)) + rows.reshape(shape)
        return (both * jnp.asarray(2**-0.5, both.dtype)).swapaxes(0, 1)


class TokenInput(nnx.Module):
    """A layer's term, see `TokenInputPlan`."""

    def __init__(self, config: ModelConfig, plan: TokenInputPlan, options: ForwardOptions, *, dtype: jnp.dtype) -> None:
        linear = partial(Linear, bias=False, dtype=dtype, options=options)
        self.gate = linear(config.hidden_size, plan.size, axes=(None, "hidden"))
        self.projection = linear(plan.size, config.hidden_size, axes=("hidden", None))
        self.norm = make_norm(plan.norm, config.hidden_size, dtype=dtype, options=options)
        self.activation = plan.activation

    def __call__(self, x: jax.Array, own: jax.Array, context: ForwardContext) -> jax.Array:
        """[T, D] from `x` [T, D], and the layer's embeddings [T, size]."""
        gated = find_activation(self.activation)(self.gate(x, context)) * own
        return self.norm(self.projection(gated, context))
