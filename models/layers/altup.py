"""Alternating updates (arXiv 2301.13310): a residual of several streams; a layer computes with one."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.config import ModelConfig
from jaxllm.models.forward_context import ForwardContext, LayerContext
from jaxllm.models.layers.decoder import DecoderLayer, LayerCache
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.layers.parameter import parameter
from jaxllm.models.options import ForwardOptions
from jaxllm.models.plan import AltUpPlan, LayerPlan
from jaxllm.models.sharding import sharding

SMALLEST = 1e-5
"""Mean square of a stream at least, where it is divided by its root."""


class AltUp(nnx.Module):
    """Predicts the streams that a layer begins with, and corrects them by what it gives."""

    def __init__(self, size: int, plan: AltUpPlan, options: ForwardOptions, *, dtype: jnp.dtype) -> None:
        linear = partial(Linear, bias=False, dtype=dtype, options=options, axes=(None, None))
        self.router_norm = make_norm(plan.norm, size, dtype=dtype, options=options)
        self.router = linear(size, plan.count)
        self.prediction = linear(plan.count, plan.count**2)
        self.correction = linear(plan.count, plan.count)
        self.scale = parameter((size,), dtype, sharding(options.mesh, None))
        self.plan = plan

    def predict(self, streams: jax.Array, context: ForwardContext) -> jax.Array:
        """Map streams [n, T, D]: each is what it was, and a sum of all, weighted by the token."""
        weights = self.prediction(self._modes(streams[self.plan.active], context), context)
        square = weights.reshape(-1, self.plan.count, self.plan.count).astype(jnp.float32)
        wide = streams.astype(jnp.float32)
        # As many products as there are streams twice: too few for the matrix units, and exact in float32.
        mixed = [
            sum(square[:, to, of, None] * wide[of] for of in range(self.plan.count)) for to in range(self.plan.count)
        ]
        return (jnp.stack(mixed) + wide).astype(streams.dtype)

    def correct(self, predicted: jax.Array, found: jax.Array, context: ForwardContext) -> jax.Array:
        """Streams [n, T, D] from those predicted, and what the layer has made of the active one, `found` [T, D]."""
        weights = self.correction(self._modes(found, context), context) + jnp.asarray(1.0, found.dtype)
        return predicted + (found - predicted[self.plan.active]) * weights.T[:, :, None]

    def active_of(self, streams: jax.Array) -> jax.Array:
        """The parts of the token's input, [T, D]."""
        own = streams[self.plan.active]
        return own * self.scale[...] if self.plan.scales else own

    def _modes(self, x: jax.Array, context: ForwardContext) -> jax.Array:
        """[T, n] of `x` [T, D]."""
        routed = self.router(self.router_norm(x) * jnp.asarray(1 / x.shape[1], x.dtype), context)
        return jnp.tanh(routed.astype(jnp.float32)).astype(x.dtype)


class AugmentedResidual(nnx.Module):
    """`x + norm(right(left(x)))`, the learned augmented residual layer (arXiv 2411.07501)."""

    def __init__(self, size: int, plan: AltUpPlan, options: ForwardOptions, *, dtype: jnp.dtype) -> None:
        linear = partial(Linear, bias=False, dtype=dtype, options=options, axes=(None, None))
        self.left, self.right = linear(size, plan.rank), linear(plan.rank, size)
        self.norm = make_norm(plan.norm, size, dtype=dtype, options=options)

    def __call__(self, x: jax.Array, context: ForwardContext) -> jax.Array:
        """Map [T, D]."""
        return x + self.norm(self.right(self.left(x, context), context))


class AltUpLayer(DecoderLayer):
    """A layer on streams [n, T, D], see `AltUpPlan`."""

    def __init__(self, config: ModelConfig, plan: LayerPlan, options: ForwardOptions, dtype: jnp.dtype) -> None:
        super().__init__(config, plan, options, dtype)
        assert isinstance(plan.streams, AltUpPlan)
        self.altup = AltUp(config.hidden_size, plan.streams, options, dtype=dtype)
        self.laurel = AugmentedResidual(config.hidden_size, plan.streams, options, dtype=dtype)

    def __call__(self, x: jax.Array, cache: LayerCache, context: LayerContext) -> tuple[jax.Array, LayerCache]:
        """Map streams `x` [n, T, D] and update its part of the cache at the context's layer."""
        forward = context.forward
        predicted = self.altup.predict(x, forward)
        active = predicted[self.altup.plan.active]
        normed = self.attention_norm(active)
        mixed, cache = self._mix(normed, cache, context)
        after = self._add(active, mixed, self.attention_output_norm) + self.laurel(normed, forward)
        after = after * jnp.asarray(2**-0.5, after.dtype)
        assert self.mlp is not None
        after = self._add(after, self.mlp(self.mlp_norm(after), forward), self.mlp_output_norm)
        streams = self.altup.correct(predicted, after, forward)
        assert self.token_input is not None
        assert context.token_input is not None
        added = self.token_input(self.altup.active_of(streams), context.token_input, forward)
        return jnp.concatenate([streams[:1], streams[1:] + added]), cache


class AltUpStreams(nnx.Module):
    """The modules before and after the layers: streams of equal magnitude from one, and one from them."""

    def __init__(self, size: int, plan: AltUpPlan, options: ForwardOptions, *, dtype: jnp.dtype) -> None:
        linear = partial(Linear, size, size, bias=False, dtype=dtype, options=options, axes=(None, None))
        self.spread = nnx.List([linear() for _ in range(plan.count - 1)])
        self.join = nnx.List([linear() for _ in range(plan.count - 1)])

    def of(self, x: jax.Array, context: ForwardContext) -> jax.Array:
        """Streams [n, T, D] of the embedding `x` [T, D]."""
        return jnp.stack([x, *(_as_large(project(x, context), x) for project in self.spread)])

    def joined(self, streams: jax.Array, context: ForwardContext) -> jax.Array:
        """[T, D]: the mean of the streams, which are projected but for the first."""
        first, *others = streams
        projected = [_as_large(project(each, context), first) for project, each in zip(self.join, others, strict=True)]
        return jnp.stack([first, *projected]).mean(axis=0, dtype=jnp.float32).astype(first.dtype)


def _as_large(x: jax.Array, like: jax.Array) -> jax.Array:
    """`x` [T, D], scaled to the root mean square that each row of another has."""

    def square(x: jax.Array) -> jax.Array:
        return jnp.mean(jnp.square(x.astype(jnp.float32)), axis=-1, keepdims=True)

    scale = jnp.sqrt(square(like)) / jnp.sqrt(jnp.maximum(square(x), SMALLEST))
    return (x.astype(jnp.float32) * scale).astype(x.dtype)
