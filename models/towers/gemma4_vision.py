"""Gemma 4's vision model: images of any shape, heads that turn by place, and a norm before and after each block.

Axis letters: P patches, B bytes of a patch, V hidden size, N heads, K KV heads, H head size, D hidden size of the
language model.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxllm.models.forward_context import ForwardContext
from jaxllm.models.layers.activation import ACTIVATIONS
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.layers.parameter import parameter
from jaxllm.models.layers.rope import Rotation, rotate
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import sharding
from jaxllm.models.towers.attention import attend_segments
from jaxllm.models.towers.crop import Crop
from jaxllm.models.towers.plan import PixelPlan, VisionPlan
from jaxllm.models.towers.repeated import RepeatedLayers


@dataclass(frozen=True, kw_only=True)
class Gemma4VisionPlan:
    """The model's sizes. There are `num_positions` learned positions each way.

    With `clips`, what goes into the products of layers and comes out of them is clipped to bounds in the checkpoint.
    """

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    patch_size: int
    num_positions: int
    rope_theta: float = 100.0
    activation: str = "gelu_pytorch_tanh"
    norm: NormPlan = NormPlan()
    bias: bool = False
    clips: bool = False
    channels: int = 3

    def make(self, pixels: PixelPlan, options: ForwardOptions, dtype: jnp.dtype) -> "Gemma4Vision":
        """The module."""
        return Gemma4Vision(self, pixels, options, dtype)


class Gemma4Vision(nnx.Module):
    """The embedding of patches and their places, then layers."""

    def __init__(self, plan: Gemma4VisionPlan, pixels: PixelPlan, options: ForwardOptions, dtype: jnp.dtype) -> None:
        self.plan, self.pixels, self.dtype = plan, pixels, dtype
        bytes_of_patch, size = plan.patch_size**2 * plan.channels, plan.hidden_size
        self.patches = Linear(bytes_of_patch, size, bias=False, dtype=dtype, axes=(None, None), options=options)
        by_axis = (2, plan.num_positions, size)
        self.positions = parameter(by_axis, dtype, sharding(options.mesh, None, None, None))
        self.layers = RepeatedLayers(lambda: _Layer(plan, options, dtype), plan.num_layers, options)

    def __call__(self, patches: jax.Array, crop: Crop) -> jax.Array:
        """Hidden states [P, V] of `patches` uint8 [P, B], whose bytes come by height, width and channel."""
        numbers = 2 * (self.pixels.numbers(patches) - jnp.float32(0.5))
        x = self.patches(numbers.astype(self.dtype), crop.context)
        rows, columns = crop.places[:, 0], crop.places[:, 1]
        # Columns come first, as in the rotation.
        x = x + (self.positions[...][0, columns] + self.positions[...][1, rows])
        rotation = _rotation(crop, self.plan)
        hidden: jax.Array = self.layers.run(lambda layer, number, x: layer(x, crop, rotation), x)
        return hidden


def _rotation(crop: Crop, plan: Gemma4VisionPlan) -> Rotation:
    """Cosine and sine [2 P, H / 4] for the halves of a head: one turns by the column, the other by the row."""
    # In float64: see `jaxllm.models.layers.rope`.
    size = plan.head_size // 2
    frequencies = 1.0 / plan.rope_theta ** (np.arange(0, size, 2, dtype=np.float64) / size)
    places = jnp.concatenate([crop.places[:, 1], crop.places[:, 0]]).astype(jnp.float32)
    angles = places[:, None] * frequencies.astype(np.float32)
    return jnp.cos(angles), jnp.sin(angles)


class _Layer(nnx.Module):
    """`x + norm(attention(norm(x)))`, then `x + norm(mlp(norm(x)))`."""

    def __init__(self, plan: Gemma4VisionPlan, options: ForwardOptions, dtype: jnp.dtype) -> None:
        norm = partial(make_norm, plan.norm, plan.hidden_size, dtype=dtype, options=options)
        self.attention_norm, self.attention_output_norm = norm(), norm()
        self.mlp_norm, self.mlp_output_norm = norm(), norm()
        self.attention = _Attention(plan, options, dtype)
        self.mlp = _MLP(plan, options, dtype)

    def __call__(self, x: jax.Array, crop: Crop, rotation: Rotation) -> jax.Array:
        """Map [P, V] to [P, V]."""
        x = x + self.attention_output_norm(self.attention(self.attention_norm(x), crop, rotation))
        return x + self.mlp_output_norm(self.mlp(self.mlp_norm(x), crop.context))


class _MLP(nnx.Module):
    """A gated block."""

    def __init__(self, plan: Gemma4VisionPlan, options: ForwardOptions, dtype: jnp.dtype) -> None:
        linear = partial(_Product, plan, options, dtype)
        self.gate = linear(plan.hidden_size, plan.intermediate_size)
        self.up = linear(plan.hidden_size, plan.intermediate_size)
        self.down = linear(plan.intermediate_size, plan.hidden_size)
        self.activation = plan.activation

    def __call__(self, x: jax.Array, context: ForwardContext) -> jax.Array:
        """Map [P, V] to [P, V]."""
        return self.down(ACTIVATIONS[self.activation](self.gate(x, context)) * self.up(x, context), context)


class _Attention(nnx.Module):
    """Attention of every patch to its whole crop, with normalised heads."""

    def __init__(self, plan: Gemma4VisionPlan, options: ForwardOptions, dtype: jnp.dtype) -> None:
        linear = partial(_Product, plan, options, dtype)
        queries, keys = plan.num_heads * plan.head_size, plan.num_kv_heads * plan.head_size
        self.query, self.output = linear(plan.hidden_size, queries), linear(queries, plan.hidden_size)
        self.key, self.value = linear(plan.hidden_size, keys), linear(plan.hidden_size, keys)
        norm = partial(make_norm, dtype=dtype, options=options)
        self.query_norm, self.key_norm = norm(plan.norm, plan.head_size), norm(plan.norm, plan.head_size)
        self.value_norm = norm(NormPlan(eps=plan.norm.eps, weight=False), plan.head_size)
        self.head_size, self.group, self.options = plan.head_size, plan.num_heads // plan.num_kv_heads, options

    def __call__(self, x: jax.Array, crop: Crop, rotation: Rotation) -> jax.Array:
        """Map [P, V] to [P, V]."""
        query, key, value = (
            project(x, crop.context).reshape(len(x), -1, self.head_size)
            for project in (self.query, self.key, self.value)
        )
        query, key = _turned(self.query_norm(query), rotation), _turned(self.key_norm(key), rotation)
        key, value = (jnp.repeat(each, self.group, axis=1) for each in (key, self.value_norm(value)))
        attended = attend_segments(query, key, value, crop.segments, self.options, scale=1.0)
        return self.output(attended.reshape(len(x), -1), crop.context)


def _turned(heads: jax.Array, rotation: Rotation) -> jax.Array:
    """Heads [P, N, H]; each half of a head is rotated by itself."""
    both = jnp.concatenate(jnp.split(heads, 2, axis=2))
    return jnp.concatenate(jnp.split(rotate(both, rotation), 2), axis=2)


class _Product(nnx.Module):
    """A product without a bias, whose input and output may have bounds."""

    def __init__(
        self, plan: Gemma4VisionPlan, options: ForwardOptions, dtype: jnp.dtype, in_size: int, out_size: int
    ) -> None:
        self.linear = Linear(in_size, out_size, bias=False, dtype=dtype, axes=(None, None), options=options)
        bounds = [parameter((1,), dtype, sharding(options.mesh, None)) if plan.clips else None for _ in range(4)]
        self.input_min, self.input_max, self.output_min, self.output_max = bounds

    def __call__(self, x: jax.Array, context: ForwardContext) -> jax.Array:
        """Map [P, in] to [P, out]."""
        return _clipped(
            self.linear(_clipped(x, self.input_min, self.input_max), context), self.output_min, self.output_max
        )


def _clipped(x: jax.Array, least: "nnx.Param[jax.Array] | None", most: "nnx.Param[jax.Array] | None") -> jax.Array:
    return x if least is None or most is None else jnp.clip(x, least[...], most[...])


@dataclass(frozen=True)
class Gemma4ProjectorPlan:
    """The mean of a square's hidden states, times the root of their number, through a norm and a product.

    With `standardizes`, less a learned bias and times a learned scale before the norm.
    """

    norm: NormPlan
    standardizes: bool = False

    def make(
        self, vision: VisionPlan, patches_per_row: int, hidden_size: int, options: ForwardOptions, dtype: jnp.dtype
    ) -> "Gemma4Projector":
        """The module."""
        return Gemma4Projector(self, vision.hidden_size, patches_per_row, hidden_size, options, dtype)


class Gemma4Projector(nnx.Module):
    """See `Gemma4ProjectorPlan`."""

    def __init__(
        self,
        plan: Gemma4ProjectorPlan,
        size: int,
        patches_per_row: int,
        hidden_size: int,
        options: ForwardOptions,
        dtype: jnp.dtype,
    ) -> None:
        own = sharding(options.mesh, None)
        self.bias = parameter((size,), dtype, own) if plan.standardizes else None
        self.scale = parameter((size,), dtype, own) if plan.standardizes else None
        self.norm = make_norm(plan.norm, size, dtype=dtype, options=options)
        self.linear = Linear(size, hidden_size, bias=False, dtype=dtype, axes=(None, None), options=options)
        self.patches_per_row = patches_per_row

    def __call__(self, hidden: jax.Array, num_rows: jax.Array) -> jax.Array:
        """Rows [P / patches_per_row, D] of [P, V]."""
        size = hidden.shape[1]
        # The patches of a square lie one after the other. In float32: values may be large, and differ by little.
        mean = hidden.reshape(-1, self.patches_per_row, size).mean(axis=1, dtype=jnp.float32).astype(hidden.dtype)
        pooled = mean.astype(jnp.float32) * size**0.5
        if self.bias is not None and self.scale is not None:
            pooled = (pooled - self.bias[...].astype(jnp.float32)) * self.scale[...].astype(jnp.float32)
        return self.linear(self.norm(pooled.astype(hidden.dtype)), ForwardContext(num_rows))
