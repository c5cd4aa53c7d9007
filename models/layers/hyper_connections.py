"""Hyper-connections: several residual streams; a token's weights say what blocks get from them and give them.

The streams of a token lie side by side in one row, [T, n * D]: each is a slice of whole lanes, and what the weights are
made of is the row as it is. Weights are float32, and streams are rounded to their type once, after a block.
"""

from functools import reduce
from operator import add
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from jaxllm.models.config import ModelConfig
from jaxllm.models.forward_context import ForwardContext, LayerContext
from jaxllm.models.layers.decoder import DecoderLayer, LayerCache
from jaxllm.models.layers.matrix import weight_of
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.layers.parameter import parameter
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.options import ForwardOptions
from jaxllm.models.plan import HyperConnectionsPlan, LayerPlan
from jaxllm.models.sharding import sharding
from jaxllm.pallas_kernels.linear import choose_layout, linear


class StreamWeights(NamedTuple):
    """What a block's streams are multiplied by; all float32."""

    output: jax.Array
    """[n, T]: how much of the block's result each stream gets."""
    mixing: jax.Array | None
    """[n, n, T]: how much of stream i is in stream j afterwards; None where each remains what it was."""


class _Mixes(nnx.Module):
    """The product of all streams, normalised together, that a token's weights are made of.

    `parts` are the numbers of weights which have a scale each.
    """

    def __init__(self, size: int, plan: HyperConnectionsPlan, parts: tuple[int, ...], options: ForwardOptions) -> None:
        exact, whole, rows = jnp.dtype(jnp.float32), sharding(options.mesh, None), sum(parts)
        self.layout = choose_layout((rows, plan.count * size), exact, native=options.native_matmul)
        self.weight = parameter(self.layout.shape, exact, sharding(options.mesh, None, None), layout=self.layout)
        self.base, self.scale = parameter((rows,), exact, whole), parameter((len(parts),), exact, whole)
        norm = NormPlan(eps=plan.norm_eps, weight=False)
        self.norm = make_norm(norm, plan.count * size, dtype=exact, options=options)
        self.parts, self.platform = parts, options.platform

    def __call__(self, streams: jax.Array, context: ForwardContext) -> list[jax.Array]:
        """For each part float32 [its size, T], scaled, from `streams` [T, n * D]."""
        wide = self.norm(streams.astype(jnp.float32))
        # Accelerators would multiply float32 as bfloat16.
        with jax.default_matmul_precision("highest"):
            product = linear(wide, weight_of(self.weight, self.layout), context.num_rows, platform=self.platform)
        found, start = [], 0
        for number, size in enumerate(self.parts):
            own = slice(start, start + size)
            found.append(product[:, own].T * self.scale[...][number] + self.base[...][own, None])
            start += size
        return found


class HyperConnection(nnx.Module):
    """What a block gets of the streams, and what these become by its result, see `HyperConnectionsPlan`."""

    def __init__(self, size: int, plan: HyperConnectionsPlan, options: ForwardOptions) -> None:
        mixing = (plan.count**2,) if plan.iterations else ()
        self.mixes = _Mixes(size, plan, (plan.count, plan.count, *mixing), options)
        self.plan = plan

    def joined(self, streams: jax.Array, context: ForwardContext) -> tuple[jax.Array, StreamWeights]:
        """What the block gets, [T, D], of `streams` [T, n * D], and the weights of what comes out."""
        plan = self.plan
        into, output, *mixing = self.mixes(streams, context)
        weights = StreamWeights(
            plan.magnitude * jax.nn.sigmoid(output) + plan.output_eps,
            doubly_stochastic(mixing[0].reshape(plan.count, plan.count, -1), plan) if mixing else None,
        )
        return _weighted_sum(streams, jax.nn.sigmoid(into) + plan.eps), weights

    def spread(self, streams: jax.Array, out: jax.Array, weights: StreamWeights) -> jax.Array:
        """The streams [T, n * D] after a block has made `out` [T, D] of them."""
        own, wide = _apart(streams, self.plan.count), out.astype(jnp.float32)
        found = []
        for number, stream in enumerate(own):
            kept = stream
            if weights.mixing is not None:
                kept = reduce(add, (weights.mixing[of, number][:, None] * each for of, each in enumerate(own)))
            found.append((kept + weights.output[number][:, None] * wide).astype(streams.dtype))
        return jnp.concatenate(found, axis=-1)


def doubly_stochastic(mixes: jax.Array, plan: HyperConnectionsPlan) -> jax.Array:
    """Matrices float32 [n, n, T] whose rows and columns each have the sum 1, nearly, from any numbers of that shape.

    The softmax of rows, whose columns and rows are divided by their sums in turns, columns last.
    """
    matrix = jax.nn.softmax(mixes, axis=1) + plan.eps

    def divided(matrix: jax.Array, axis: int) -> jax.Array:
        return matrix / (matrix.sum(axis=axis, keepdims=True) + plan.eps)

    def turn(_: jax.Array, matrix: jax.Array) -> jax.Array:
        return divided(divided(matrix, 1), 0)

    return lax.fori_loop(0, plan.iterations - 1, turn, divided(matrix, 0))


def _apart(streams: jax.Array, count: int) -> list[jax.Array]:
    """The streams, float32 [T, D] each."""
    return jnp.split(streams.astype(jnp.float32), count, axis=-1)


def _weighted_sum(streams: jax.Array, weights: jax.Array) -> jax.Array:
    """The sum [T, D] of `streams` [T, n * D], times `weights` float32 [n, T]."""
    own = _apart(streams, len(weights))
    return reduce(add, (weights[of][:, None] * each for of, each in enumerate(own))).astype(streams.dtype)


class HyperConnectedLayer(DecoderLayer):
    """A layer on streams [T, n * D]: each of its blocks gets a weighted sum of them, and adds to all."""

    def __init__(self, config: ModelConfig, plan: LayerPlan, options: ForwardOptions, dtype: jnp.dtype) -> None:
        super().__init__(config, plan, options, dtype)
        assert isinstance(plan.streams, HyperConnectionsPlan)
        self.attention_streams = HyperConnection(config.hidden_size, plan.streams, options)
        self.mlp_streams = HyperConnection(config.hidden_size, plan.streams, options)

    def __call__(self, x: jax.Array, cache: LayerCache, context: LayerContext) -> tuple[jax.Array, LayerCache]:
        """Map streams `x` [T, n * D] and update its part of the cache at the context's layer."""
        forward = context.forward
        joined, weights = self.attention_streams.joined(x, forward)
        mixed, cache = self._mix(self.attention_norm(joined), cache, context)
        x = self.attention_streams.spread(x, mixed, weights)
        joined, weights = self.mlp_streams.joined(x, forward)
        assert self.mlp is not None
        return self.mlp_streams.spread(x, self.mlp(self.mlp_norm(joined), forward), weights), cache


class HyperStreams(nnx.Module):
    """Before the layers, streams that are equal; after them, one from all."""

    def __init__(self, size: int, plan: HyperConnectionsPlan, options: ForwardOptions) -> None:
        self.mixes = _Mixes(size, plan, (plan.count,), options) if plan.joins_by_weight else None
        self.plan = plan

    def of(self, x: jax.Array, context: ForwardContext) -> jax.Array:
        """Streams [T, n * D] of the embedding `x` [T, D]."""
        return jnp.tile(x, (1, self.plan.count))

    def joined(self, streams: jax.Array, context: ForwardContext) -> jax.Array:
        """[T, D]: the sum of the streams by weights of the token, or their mean."""
        if self.mixes is None:
            mean = reduce(add, _apart(streams, self.plan.count)) / self.plan.count
            return mean.astype(streams.dtype)
        (weights,) = self.mixes(streams, context)
        return _weighted_sum(streams, jax.nn.sigmoid(weights) + self.plan.eps)
