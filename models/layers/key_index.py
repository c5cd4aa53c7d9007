"""The index of keys of latent attention (DeepSeek sparse attention, DeepSeek-V3.2-Exp's report)."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.attention_plan import KeyIndexPlan, LatentAttentionPlan
from jaxllm.models.config import ModelConfig
from jaxllm.models.forward_context import LayerContext
from jaxllm.models.layers.head_growth import HeadGrowth
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.layers.parameter import Rows, parameter
from jaxllm.models.layers.rope import pair_order, rotate
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import sharding
from jaxllm.pallas_kernels.latent_attention import KeyIndex


class KeyIndexer(nnx.Module):
    """Products that make queries, a key and weights of heads of each token; see `KeyIndexPlan`.

    Each device has all of them: they choose the same keys for all heads of attention.
    """

    def __init__(
        self,
        config: ModelConfig,
        plan: LatentAttentionPlan,
        options: ForwardOptions,
        *,
        dtype: jnp.dtype,
    ) -> None:
        index = plan.index
        assert index is not None
        self.plan, self.rope_size = index, plan.rope_size
        size = config.hidden_size if index.input_norm is not None else plan.query_rank
        assert size is not None, "an index takes the latents of queries, or its input"
        linear = partial(Linear, bias=False, dtype=dtype, options=options, axes=(None, "hidden"))
        rows = _rotated_apart(plan, index)
        self.input_norm = make_norm(index.input_norm, size, dtype=dtype, options=options)
        self.query = linear(size, index.heads * index.size, rows=rows)
        self.growth = HeadGrowth(index.heads, options, axis=None) if index.grows else None
        self.key = linear(config.hidden_size, index.size, rows=rows)
        self.norm = make_norm(index.norm, index.size, dtype=dtype, options=options, rows=rows)
        self.weights = linear(config.hidden_size, index.heads)
        # They are used in float32, as a product gives them before adapters.
        self.weights.takes_adapters = False
        self.gate = linear(config.hidden_size, index.size) if index.pool > 1 else None
        if self.gate is not None:
            self.gate.takes_adapters = False
        bias = partial(parameter, dtype=jnp.dtype(jnp.float32), sharding=sharding(options.mesh, None, None))
        self.place_bias = bias((index.pool, index.size)) if index.pool > 1 else None

    def __call__(self, x: jax.Array, query_latent: jax.Array, context: LayerContext) -> KeyIndex:
        """The index of tokens `x` [T, D], with the latents of their queries."""
        plan, forward = self.plan, context.forward
        of = query_latent if plan.input_norm is None else self.input_norm(x)
        query = self.query(of, forward).reshape(len(x), plan.heads, plan.size)
        if self.growth is not None:
            query = self.growth(query, context.ragged.positions)
        key = self.norm(self.key(x, forward))
        weights = self.weights.product(x, forward, out_dtype=jnp.float32) * plan.heads**-0.5
        query, key = self._rotated(query, context), self._rotated(key[:, None], context)[:, 0]
        if self.gate is None or self.place_bias is None:
            return KeyIndex(query, weights, key, plan.top)
        both = jnp.concatenate([key, self.gate(x, forward)], axis=-1)
        return KeyIndex(query, weights, both, plan.top, self.place_bias[...])

    def _rotated(self, x: jax.Array, context: LayerContext) -> jax.Array:
        """`x` [T, heads, I], the first or the last elements of each head rotated."""
        if context.rotation is None:
            return x
        if self.plan.rotates_last:
            before = self.plan.size - self.rope_size
            return jnp.concatenate([x[..., :before], rotate(x[..., before:], context.rotation)], axis=-1)
        turned = rotate(x[..., : self.rope_size], context.rotation)
        return jnp.concatenate([turned, x[..., self.rope_size :]], axis=-1)


def _rotated_apart(plan: LatentAttentionPlan, index: KeyIndexPlan) -> Rows:
    """Rows of index heads: those elements that are rotated, before or after the others, which are as they are."""
    rope = None if plan.rope is None else replace(plan.rope, interleaved=index.interleaved)
    order, others = pair_order(rope, plan.rope_size) or range(plan.rope_size), index.size - plan.rope_size
    if index.rotates_last:
        return Rows(group=index.size, order=(*range(others), *(others + place for place in order)))
    return Rows(group=index.size, order=(*order, *range(plan.rope_size, index.size)))
