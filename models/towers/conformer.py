"""The audio model of Phi-4 multimodal (arXiv 2503.01743): a conformer (arXiv 2005.08100), from features to rows.

Axis letters: B mel bins, F frames, P positions, V hidden size of the tower, N heads, H head size, C channels, D hidden
size of the language model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.forward_context import ALL_ROWS
from jaxllm.models.layers.activation import ACTIVATIONS
from jaxllm.models.layers.embedding import Table
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.layers.parameter import parameter
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import sharding
from jaxllm.models.towers.repeated import RepeatedLayers
from jaxllm.models.towers.sound import SoundPlan
from jaxllm.models.towers.vision_layer import VisionMLP

if TYPE_CHECKING:
    from jaxllm.models.config import ModelConfig

_TAPS = 3
"""Frames, and bins, that a convolution before the layers sees at a time."""


@dataclass(frozen=True, kw_only=True)
class ConformerPlan(SoundPlan):
    """A conformer over windows of a sound that is cut into them after its convolutions.

    `reductions` convolutions halve the number of frames, so a window has as many frames before it as become a position:
    where there are none, these are below 0, which no feature is. Sound that does not fill its first window is alone in
    it; that of a later one sees the zeros after it, as in the authors' code. `kernel` positions, up to its own, are
    what the convolution of a layer sees. Scores have a bias for each distance, which is less than `max_distance`.
    """

    reductions: int = 3
    channels: int
    kernel: int = 3
    max_distance: int
    conv_activation: str = "silu"
    gate_activation: str = "silu"
    first_activation: str = "relu"
    projector_activation: str = "gelu"

    @property
    def frames_per_key(self) -> int:
        """See `SoundPlan`."""
        return 1 << self.reductions

    @property
    def context(self) -> int:
        """See `SoundPlan`."""
        return self.frames_per_key

    @property
    def last_bins(self) -> int:
        """Bins that the convolutions leave."""
        return -(-self.num_bins // self.frames_per_key)


class ConformerRows(nnx.Module):
    """The audio model, and two products that make rows in place of tokens of what it gives."""

    def __init__(self, config: "ModelConfig", options: ForwardOptions, dtype: jnp.dtype) -> None:
        plan, size = config.sound, config.hidden_size
        assert isinstance(plan, ConformerPlan)
        linear = partial(Linear, bias=True, dtype=dtype, axes=(None, None), options=options)
        self.plan, self.encoder = plan, Conformer(plan, options, dtype)
        self.projector, self.second = linear(plan.hidden_size, size), linear(size, size)

    def __call__(self, features: jax.Array, num_frames: jax.Array) -> jax.Array:
        """Rows [P, D] of the log-mel features float32 [B, context + F] of a window.

        The first `num_frames` int32 [] after the context are sound.
        """
        x = self.projector(self.encoder(features, num_frames), ALL_ROWS)
        return self.second(ACTIVATIONS[self.plan.projector_activation](x), ALL_ROWS)


class Conformer(nnx.Module):
    """Features, scaled, convolutions that halve their frames and bins, a product, and layers."""

    def __init__(self, plan: ConformerPlan, options: ForwardOptions, dtype: jnp.dtype) -> None:
        self.plan, self.dtype, size, channels = plan, dtype, plan.hidden_size, plan.channels
        linear = partial(Linear, bias=True, dtype=dtype, axes=(None, None), options=options)
        self.scaling = Scaling(plan.num_bins, options)
        self.first = linear(_TAPS**2, channels)
        self.halves = nnx.List([Halving(channels, options, dtype) for _ in range(plan.reductions - 1)])
        self.out = linear(channels * plan.last_bins, size)
        self.distances = Table(2 * plan.max_distance, plan.num_heads, dtype, options)
        self.layers = RepeatedLayers(lambda: ConformerLayer(plan, options, dtype), plan.num_layers, options)

    def __call__(self, features: jax.Array, num_frames: jax.Array) -> jax.Array:
        """Hidden states [P, V]; those after the sound mean nothing."""
        plan = self.plan
        # Logarithms are of 1 or more: below 0, there is no sound before the window.
        follows = features[0, 0] >= 0
        x = self._halved(self.scaling(features.T), num_frames, follows)
        x = self.out(x.swapaxes(1, 2).reshape(len(x), -1), ALL_ROWS)[1:]
        count, place = -(-num_frames // plan.frames_per_key), jnp.arange(plan.num_keys)
        x = jnp.where(place[:, None] < count, x, 0)
        bias = self._bias(jnp.where(follows, plan.num_keys, count))
        return self.layers.run(lambda layer, number, x: layer(x, bias), x)

    def _halved(self, x: jax.Array, num_frames: jax.Array, follows: jax.Array) -> jax.Array:
        """What the convolutions make [1 + P, bins, C] of scaled features [context + F, B]."""
        activation, before, count = ACTIVATIONS[self.plan.first_activation], self.plan.context, num_frames

        def ended(x: jax.Array) -> jax.Array:
            place = jnp.arange(len(x))
            is_sound = ((place >= before) | follows) & (place < before + count)
            return jnp.where(is_sound[:, None, None], x, 0)

        x = ended(x[:, :, None].astype(self.dtype))
        near = jnp.stack(neighbours(x[:, :, 0]), axis=-1)
        x = activation(_by_rows(self.first, near))
        for half in self.halves:
            before, count = before // 2, -(-count // 2)
            x = activation(half(ended(x)))
        return x

    def _bias(self, count: jax.Array) -> jax.Array:
        """What is added to scores, float32 [N, P, P]: by distance, and so that only the first `count` are seen."""
        plan = self.plan
        place = jnp.arange(plan.num_keys)
        distance = jnp.clip(place[None] - place[:, None], -plan.max_distance, plan.max_distance - 1)
        bias = self.distances(distance.reshape(-1) + plan.max_distance).astype(jnp.float32)
        bias = bias.reshape(plan.num_keys, plan.num_keys, -1).transpose(2, 0, 1)
        return jnp.where(place < count, bias, -jnp.inf)


class Scaling(nnx.Module):
    """Less a mean, times the inverse of a deviation, of each bin."""

    def __init__(self, size: int, options: ForwardOptions) -> None:
        whole = sharding(options.mesh, None)
        self.global_mean = parameter((size,), jnp.dtype("float32"), whole)
        self.global_invstd = parameter((size,), jnp.dtype("float32"), whole)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map [F, B] to [F, B]."""
        return (x - self.global_mean[...]) * self.global_invstd[...]


class Halving(nnx.Module):
    """A convolution of each channel, which gives every second frame and bin, and a product of the channels."""

    def __init__(self, channels: int, options: ForwardOptions, dtype: jnp.dtype) -> None:
        self.depthwise = Depthwise((channels, 1, _TAPS, _TAPS), options, dtype)
        self.product = Linear(channels, channels, bias=True, dtype=dtype, axes=(None, None), options=options)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map [F, B, C] to [F / 2, B / 2, C]."""
        return _by_rows(self.product, self.depthwise(neighbours(x)))


class Depthwise(nnx.Module):
    """A convolution of each channel."""

    def __init__(self, shape: tuple[int, ...], options: ForwardOptions, dtype: jnp.dtype) -> None:
        self.weight = parameter(shape, dtype, sharding(options.mesh, *(None,) * len(shape)))
        self.bias = parameter(shape[:1], dtype, sharding(options.mesh, None))

    def __call__(self, near: Sequence[jax.Array]) -> jax.Array:
        """The sum [..., C] of what each tap sees, times its weights, and of the bias."""
        weights = self.weight[...]
        total = self.bias[...]
        for each, tap in zip(near, weights.reshape(len(weights), -1).T, strict=True):
            total = total + each * tap
        return total


class ConformerLayer(nnx.Module):
    """Half an MLP, attention, a convolution, half an MLP, each with a norm before it and added; and a norm."""

    def __init__(self, plan: ConformerPlan, options: ForwardOptions, dtype: jnp.dtype) -> None:
        norm = partial(make_norm, plan.norm, plan.hidden_size, dtype=dtype, options=options)
        self.first_norm, self.first_mlp = norm(), VisionMLP(plan, options, dtype)
        self.attention_norm, self.attention = norm(), BiasedAttention(plan, options, dtype)
        self.convolution_norm, self.convolution = norm(), GatedConvolution(plan, options, dtype)
        self.last_norm, self.last_mlp = norm(), VisionMLP(plan, options, dtype)
        self.norm = norm()

    def __call__(self, x: jax.Array, bias: jax.Array) -> jax.Array:
        """Map [P, V] to [P, V]; `bias` [N, P, P] is added to scores."""
        x = x + 0.5 * self.first_mlp(self.first_norm(x), ALL_ROWS)
        x = x + self.attention(self.attention_norm(x), bias)
        x = x + self.convolution(self.convolution_norm(x))
        return self.norm(x + 0.5 * self.last_mlp(self.last_norm(x), ALL_ROWS))


class BiasedAttention(nnx.Module):
    """Attention with a bias for each pair of positions, which no kernel has: a window is small."""

    def __init__(self, plan: ConformerPlan, options: ForwardOptions, dtype: jnp.dtype) -> None:
        size, self.num_heads, self.scale = plan.hidden_size, plan.num_heads, plan.head_size**-0.5
        linear = partial(Linear, size, size, bias=True, dtype=dtype, axes=(None, None), options=options)
        self.query, self.key, self.value, self.output = linear(), linear(), linear(), linear()

    def __call__(self, x: jax.Array, bias: jax.Array) -> jax.Array:
        """Map [P, V] to [P, V]."""
        query, key, value = (
            made(x, ALL_ROWS).reshape(len(x), self.num_heads, -1) for made in (self.query, self.key, self.value)
        )
        scores = jnp.einsum("pnh,qnh->npq", query, key, preferred_element_type=jnp.float32) * self.scale + bias
        weights = jax.nn.softmax(scores, axis=-1).astype(x.dtype)
        return self.output(jnp.einsum("npq,qnh->pnh", weights, value).reshape(x.shape), ALL_ROWS)


class GatedConvolution(nnx.Module):
    """A gated product, a convolution of each channel over the positions before, and two products."""

    def __init__(self, plan: ConformerPlan, options: ForwardOptions, dtype: jnp.dtype) -> None:
        size, self.plan = plan.hidden_size, plan
        linear = partial(Linear, bias=True, dtype=dtype, axes=(None, None), options=options)
        self.up = linear(size, 2 * size)
        self.gate = GateBias(size, options, dtype)
        self.depthwise = Depthwise((size, 1, plan.kernel), options, dtype)
        self.inner, self.output = linear(size, size), linear(size, size)

    def __call__(self, x: jax.Array) -> jax.Array:
        """Map [P, V] to [P, V]."""
        up, gate = jnp.split(self.up(x, ALL_ROWS), 2, axis=1)
        x = (up + self.gate.b1[...].reshape(-1)) * ACTIVATIONS[self.plan.gate_activation](
            gate + self.gate.b2[...].reshape(-1)
        )
        padded = jnp.pad(x, ((self.plan.kernel - 1, 0), (0, 0)))
        x = self.depthwise([padded[first : first + len(x)] for first in range(self.plan.kernel)])
        x = ACTIVATIONS[self.plan.conv_activation](self.inner(x, ALL_ROWS))
        return self.output(x, ALL_ROWS)


class GateBias(nnx.Module):
    """What is added to the two halves of a gated product."""

    def __init__(self, size: int, options: ForwardOptions, dtype: jnp.dtype) -> None:
        self.b1, self.b2 = (parameter((1, size, 1), dtype, sharding(options.mesh, *(None,) * 3)) for _ in range(2))


def _by_rows(product: Linear, x: jax.Array) -> jax.Array:
    """The product of the last axis of `x` [F, B, C]."""
    return product(x.reshape(-1, x.shape[2]), ALL_ROWS).reshape(*x.shape[:2], -1)


def neighbours(x: jax.Array) -> list[jax.Array]:
    """Every second row and column of `x` [F, B, ...] with those around it: nine arrays, row by row; beyond is zero."""
    rows, columns = x.shape[:2]
    padded = jnp.pad(x, ((1, 1), (1, 1), *((0, 0),) * (x.ndim - 2)))
    return [padded[row : row + rows : 2, column : column + columns : 2] for row in range(3) for column in range(3)]
