"""Streams of the residual with gates of low rank, and the n-grams that layers may add to them (Qwen4-Exp).

The streams of a token lie side by side in one row, [T, n * D], as those of hyper-connections do.
"""

from functools import partial
from typing import cast

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.cache import States
from jaxllm.models.config import ModelConfig
from jaxllm.models.forward_context import ForwardContext, LayerContext
from jaxllm.models.gram_plan import WithGramsPlan
from jaxllm.models.layers.decoder import DecoderLayer, LayerCache
from jaxllm.models.layers.grams import Grams
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.options import ForwardOptions
from jaxllm.models.plan import GatedStreamsPlan, LayerPlan


class GatedMix(nnx.Module):
    """What a block gets of the streams, see `GatedStreamsPlan`. Every device has all of it."""

    def __init__(self, size: int, plan: GatedStreamsPlan, options: ForwardOptions, *, dtype: jnp.dtype) -> None:
        wide, linear = plan.count * size, partial(Linear, bias=False, dtype=dtype, options=options)
        self.plan, self.size = plan, size
        self.norm = make_norm(plan.norm, plan.count, size, dtype=dtype, options=options, axes=(None, None))
        self.down = linear(wide, plan.rank, axes=(None, "hidden"))
        self.up = linear(plan.rank, wide, axes=(None, None))

    def __call__(self, streams: jax.Array, context: ForwardContext) -> tuple[jax.Array, jax.Array]:
        """The mean of gated streams [T, D], and the normalised streams [T, n * D], from `streams` [T, n * D]."""
        normed = self.norm(streams.reshape(len(streams), -1, self.size))
        row, count = normed.reshape(streams.shape), self.plan.count
        between = jax.nn.silu(self.down(row, context).astype(jnp.float32) / count).astype(row.dtype)
        gates = jax.nn.sigmoid(self.up(between, context).astype(jnp.float32)).reshape(normed.shape)
        return (gates * normed).mean(axis=1).astype(row.dtype), row


class GatedConnection(nnx.Module):
    """The streams before a block and after it."""

    def __init__(self, size: int, plan: GatedStreamsPlan, options: ForwardOptions, *, dtype: jnp.dtype) -> None:
        self.mix = GatedMix(size, plan, options, dtype=dtype)
        self.inject = Linear(
            plan.count * size, plan.count, bias=False, dtype=dtype, options=options, axes=(None, "hidden")
        )
        # Used in float32, as a product gives them before adapters.
        self.inject.takes_adapters = False

    def joined(self, streams: jax.Array, context: ForwardContext) -> tuple[jax.Array, jax.Array]:
        """What the block gets, [T, D], of `streams` [T, n * D]; and how much each gets back, float32 [T, n]."""
        mixed, normed = self.mix(streams, context)
        product = self.inject.product(normed, context, out_dtype=jnp.float32)
        return mixed, 2 * jax.nn.sigmoid(product / self.mix.plan.count)

    def spread(self, streams: jax.Array, out: jax.Array, weights: jax.Array) -> jax.Array:
        """The streams [T, n * D] after a block has made `out` [T, D] of them."""
        added = weights[:, :, None] * out.astype(jnp.float32)[:, None]
        return (streams + added.reshape(streams.shape)).astype(streams.dtype)


class GatedStreamsLayer(DecoderLayer):
    """A layer on streams [T, n * D], to which n-grams may be added first."""

    def __init__(self, config: ModelConfig, plan: LayerPlan, options: ForwardOptions, dtype: jnp.dtype) -> None:
        super().__init__(config, plan, options, dtype)
        assert isinstance(plan.streams, GatedStreamsPlan)
        connection = partial(GatedConnection, config.hidden_size, plan.streams, options, dtype=dtype)
        self.attention_streams, self.mlp_streams = connection(), connection()
        own = plan.recurrence
        self.grams = Grams(own.grams, options, dtype=dtype) if isinstance(own, WithGramsPlan) else None

    def __call__(self, x: jax.Array, cache: LayerCache, context: LayerContext) -> tuple[jax.Array, LayerCache]:
        """Map streams `x` [T, n * D] and update its part of the cache at the context's layer."""
        forward = context.forward
        x, cache, grams = self._with_grams(x, cache, context)
        joined, weights = self.attention_streams.joined(x, forward)
        mixed, cache = self._mix(joined, cache, context)
        x = self.attention_streams.spread(x, mixed, weights)
        joined, weights = self.mlp_streams.joined(x, forward)
        assert self.mlp is not None
        return self.mlp_streams.spread(x, self.mlp(joined, forward), weights), self._with_states(cache, grams)

    def _with_grams(
        self, x: jax.Array, cache: LayerCache, context: LayerContext
    ) -> tuple[jax.Array, LayerCache, States]:
        """The streams with n-grams, the states of the recurrence, and the new ones of n-grams."""
        if self.grams is None:
            return x, cache, ()
        states, drafts, count = self._parts(cache)
        own = len(self.grams.plan.states)
        added, after = self.grams(x, (*states[count:], *drafts[len(drafts) - own :]), context)
        return x + added, (*states[:count], *drafts[: len(drafts) - own]), after

    def _with_states(self, cache: LayerCache, grams: States) -> LayerCache:
        """What both keep, in the order of `WithGramsPlan`."""
        if self.grams is None or not grams:
            return cache
        assert isinstance(self.plan.recurrence, WithGramsPlan)
        count, own, states = len(self.plan.recurrence.block.states), len(self.grams.plan.states), cast(States, cache)
        return (*states[:count], *grams[:own], *states[count:], *grams[own:])

    def _parts(self, cache: LayerCache) -> tuple[States, States, int]:
        """States and inputs of drafts, where there are any, and how many of the states are the recurrence's."""
        assert isinstance(cache, tuple)
        assert isinstance(self.plan.recurrence, WithGramsPlan)
        both = len(self.plan.recurrence.states)
        return cache[:both], cache[both:], len(self.plan.recurrence.block.states)


class GatedStreams(nnx.Module):
    """Before the layers, streams that are equal; after them, one from all."""

    def __init__(self, size: int, plan: GatedStreamsPlan, options: ForwardOptions, *, dtype: jnp.dtype) -> None:
        self.mix = GatedMix(size, plan, options, dtype=dtype)

    def of(self, x: jax.Array, context: ForwardContext) -> jax.Array:
        """Streams [T, n * D] of the embedding `x` [T, D]."""
        return jnp.tile(x, (1, self.mix.plan.count))

    def joined(self, streams: jax.Array, context: ForwardContext) -> jax.Array:
        """[T, D]: the mean of the gated streams."""
        return self.mix(streams, context)[0]
