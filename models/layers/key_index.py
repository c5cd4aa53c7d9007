"""The index of keys of latent attention (DeepSeek sparse attention, DeepSeek-V3.2-Exp's report)."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.attention_plan import KeyIndexPlan, LatentAttentionPlan
from jaxllm.models.config import ModelConfig
from jaxllm.models.forward_context import LayerContext
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.layers.parameter import Rows
from jaxllm.models.layers.rope import pair_order, rotate
from jaxllm.models.options import ForwardOptions
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
        assert plan.query_rank is not None, "an index takes the latents of queries"
        linear = partial(Linear, bias=False, dtype=dtype, options=options, axes=(None, "hidden"))
        rows = _rotated_apart(plan, index)
        self.query = linear(plan.query_rank, index.heads * index.size, rows=rows)
        self.key = linear(config.hidden_size, index.size, rows=rows)
        self.norm = make_norm(index.norm, index.size, dtype=dtype, options=options, rows=rows)
        self.weights = linear(config.hidden_size, index.heads)
        # They are used in float32, as a product gives them before adapters.
        self.weights.takes_adapters = False

    def __call__(self, x: jax.Array, query_latent: jax.Array, context: LayerContext) -> KeyIndex:
        """The index of tokens `x` [T, D], with the latents of their queries."""
        plan, forward = self.plan, context.forward
        query = self.query(query_latent, forward).reshape(len(x), plan.heads, plan.size)
        key = self.norm(self.key(x, forward))
        weights = self.weights.product(x, forward, out_dtype=jnp.float32) * plan.heads**-0.5
        return KeyIndex(self._rotated(query, context), weights, self._rotated(key[:, None], context)[:, 0], plan.top)

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
