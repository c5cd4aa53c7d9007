"""Vision transformers that see images of any size: those of Qwen2-VL and later, GLM-4V and PaddleOCR-VL.

Queries and keys turn by the place of their patch: half of a head by its row, half by its column. Qwen2.5-VL attends
within windows in most layers (arXiv 2502.13923). Others add learned positions, interpolated between those of a square.
Qwen3-VL gives hidden states of several layers (DeepStack, arXiv 2406.04334).

Axis letters: P patches, B bytes of a patch, V hidden size of the transformer, N heads, H head size.
"""

from dataclasses import dataclass
from functools import partial
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from jaxllm.models.forward_context import ForwardContext
from jaxllm.models.layers.activation import ACTIVATIONS
from jaxllm.models.layers.embedding import Table
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.layers.rope import Rotation, rotate
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.options import ForwardOptions
from jaxllm.models.towers.attention import attend_segments
from jaxllm.models.towers.crop import Crop
from jaxllm.models.towers.plan import PixelPlan
from jaxllm.models.towers.repeated import RepeatedLayers
from jaxllm.models.towers.windows import Windows
from jaxllm.pallas_kernels.segment_attention.segments import Segments

Interpolation = Literal["corners", "centres", "cubic"]
"""How learned positions are spread over an image: corners meet corners, centres of patches meet centres, or these with
the cubic kernel of Keys (a = -0.75) in place of straight lines."""
Carry = tuple[jax.Array, jax.Array]
"""Hidden states [P, V], and those of taps [n, P, V]."""


@dataclass(frozen=True, kw_only=True)
class GridVisionPlan:
    """Such a vision transformer, of `size` V.

    Layers other than `full_layers` attend within windows of `window` squares of `merge` patches each way, if that is
    not 0. Learned positions are those of a square of `side` patches each way; 0: there are none. After the layers
    `taps` their hidden states are given too. A patch of a video spans so many `frames`; an image fills all of them.
    There may be norms of embedded patches, before positions are added, of the last hidden states, and of each head of
    queries and keys.
    """

    size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    patch_size: int
    merge: int
    activation: str
    norm: NormPlan
    is_gated: bool = False
    patch_bias: bool = False
    theta: float = 10000.0
    window: int = 0
    full_layers: tuple[int, ...] = ()
    side: int = 0
    interpolation: Interpolation = "corners"
    taps: tuple[int, ...] = ()
    channels: int = 3
    frames: int = 2
    patch_norm: NormPlan | None = None
    last_norm: NormPlan | None = None
    head_norm: NormPlan | None = None
    qkv_bias: bool = True
    bias: bool = True
    """Whether products after those of queries, keys and values have biases."""

    @property
    def hidden_size(self) -> int:
        """Numbers that the projector gets for each patch: the hidden states of all taps, after the last layer's."""
        return self.size * (1 + len(self.taps))

    @property
    def head_size(self) -> int:
        """Size of a head."""
        return self.size // self.num_heads

    def make(self, pixels: PixelPlan, options: ForwardOptions, dtype: jnp.dtype) -> "GridVision":
        """The module."""
        return GridVision(self, pixels, options, dtype)


class GridVision(nnx.Module):
    """The embedding of patches, then layers. See `GridVisionPlan`."""

    def __init__(self, plan: GridVisionPlan, pixels: PixelPlan, options: ForwardOptions, dtype: jnp.dtype) -> None:
        self.plan, self.pixels, self.dtype = plan, pixels, dtype
        inputs = plan.frames * plan.patch_size**2 * plan.channels
        self.patches = Linear(inputs, plan.size, bias=plan.patch_bias, dtype=dtype, axes=(None, None), options=options)
        self.patch_norm = make_norm(plan.patch_norm, plan.size, dtype=dtype, options=options)
        self.last_norm = make_norm(plan.last_norm, plan.size, dtype=dtype, options=options)
        self.positions = Table(plan.side**2, plan.size, dtype, options) if plan.side else None
        self.layers = RepeatedLayers(lambda: GridVisionLayer(plan, options, dtype), plan.num_layers, options)

    def __call__(self, patches: jax.Array, crop: Crop) -> jax.Array:
        """Hidden states [P, V] of `patches` uint8 [P, B]; of several layers [P, n * V], those of the last first."""
        plan, context = self.plan, crop.context
        x = self.patch_norm(self.patches(self.pixels.numbers(patches).astype(self.dtype), context))
        if self.positions is not None:
            x = x + interpolated(self.positions, plan.side, crop, plan.interpolation).astype(x.dtype)
        rotation = place_rotation(crop.places, plan.head_size, plan.theta)
        windows = Windows.of(crop, plan.merge, plan.window) if plan.window else None
        if windows is not None:
            x, rotation = windows.sorted(x), jax.tree.map(windows.sorted, rotation)
        is_full = np.isin(np.arange(plan.num_layers), plan.full_layers)
        taps = np.array(plan.taps, np.int32)[:, None, None]

        def step(layer: GridVisionLayer, number: jax.Array, carry: Carry) -> Carry:
            x, tapped = carry
            segments = crop.segments if windows is None else windows.segments_of(jnp.asarray(is_full)[number])
            x = layer(x, rotation, segments, context)
            return x, jnp.where(taps == number, x, tapped)

        x, tapped = self.layers.run(step, (x, jnp.zeros((len(taps), *x.shape), x.dtype)))
        x = self.last_norm(x)
        x = jnp.concatenate([x, *tapped], axis=1) if plan.taps else x
        return x if windows is None else windows.restored(x)


class GridVisionLayer(nnx.Module):
    """`x + attention(norm(x))`, then `x + mlp(norm(x))`."""

    def __init__(self, plan: GridVisionPlan, options: ForwardOptions, dtype: jnp.dtype) -> None:
        linear = partial(Linear, bias=plan.bias, dtype=dtype, axes=(None, None), options=options)
        self.attention_norm = make_norm(plan.norm, plan.size, dtype=dtype, options=options)
        self.attention = GridVisionAttention(plan, options, dtype)
        self.mlp_norm = make_norm(plan.norm, plan.size, dtype=dtype, options=options)
        self.gate = linear(plan.size, plan.intermediate_size) if plan.is_gated else None
        self.up = linear(plan.size, plan.intermediate_size)
        self.down = linear(plan.intermediate_size, plan.size)
        self.activation = plan.activation

    def __call__(self, x: jax.Array, rotation: Rotation, segments: Segments, context: ForwardContext) -> jax.Array:
        """Map [P, V] to [P, V]."""
        x = x + self.attention(self.attention_norm(x), rotation, segments, context)
        normed, activate = self.mlp_norm(x), ACTIVATIONS[self.activation]
        inner = self.up(normed, context)
        inner = activate(inner) if self.gate is None else activate(self.gate(normed, context)) * inner
        return x + self.down(inner, context)


class GridVisionAttention(nnx.Module):
    """Attention of every patch to its crop, or to its window."""

    def __init__(self, plan: GridVisionPlan, options: ForwardOptions, dtype: jnp.dtype) -> None:
        linear = partial(Linear, plan.size, plan.size, dtype=dtype, axes=(None, None), options=options)
        self.query, self.key, self.value = (linear(bias=plan.qkv_bias) for _ in range(3))
        self.output = linear(bias=plan.bias)
        norm = partial(make_norm, plan.head_norm, plan.head_size, dtype=dtype, options=options)
        self.query_norm, self.key_norm = norm(), norm()
        self.head_size, self.options = plan.head_size, options

    def __call__(self, x: jax.Array, rotation: Rotation, segments: Segments, context: ForwardContext) -> jax.Array:
        """Map [P, V] to [P, V]."""
        query, key, value = (
            project(x, context).reshape(len(x), -1, self.head_size) for project in (self.query, self.key, self.value)
        )
        query, key = rotate(self.query_norm(query), rotation), rotate(self.key_norm(key), rotation)
        attended = attend_segments(query, key, value, segments, self.options, scale=self.head_size**-0.5)
        return self.output(attended.reshape(x.shape), context)


def place_rotation(places: jax.Array, head_size: int, theta: float) -> Rotation:
    """Cosine and sine float32 [P, H / 2] for patches at `places` int32 [P, 2]: the first pairs turn by the row."""
    half = head_size // 2
    inverse = (1.0 / theta ** (np.arange(0, half, 2) / half)).astype(np.float32)
    angles = (places.astype(jnp.float32)[:, :, None] * inverse).reshape(len(places), half)
    return jnp.cos(angles), jnp.sin(angles)


def interpolated(table: Table, side: int, crop: Crop, kind: Interpolation) -> jax.Array:
    """The learned positions of the patches, float32 [P, V], between those of a square of `side` each way."""
    places, size = crop.places.astype(jnp.float32), crop.size.astype(jnp.float32)
    if kind == "corners":
        exact = places * (jnp.float32(side - 1) / jnp.maximum(size - 1, 1))
    else:
        exact = (places + 0.5) * jnp.float32(side) / size - 0.5
    low = jnp.floor(exact)
    offsets = range(-1, 3) if kind == "cubic" else range(2)
    weight = _cubic if kind == "cubic" else _straight
    # Of each way: the trained positions that a patch lies between, and how much each counts.
    between = [jnp.clip(low.astype(jnp.int32) + offset, 0, side - 1) for offset in offsets]
    counts = [weight(jnp.abs(exact - low - offset)) for offset in offsets]
    found = jnp.float32(0)
    for rows, row_counts in zip(between, counts, strict=True):
        for columns, column_counts in zip(between, counts, strict=True):
            trained = table(rows[:, 0] * side + columns[:, 1]).astype(jnp.float32)
            found += trained * (row_counts[:, 0] * column_counts[:, 1])[:, None]
    return found


def _straight(distance: jax.Array) -> jax.Array:
    return jnp.maximum(1 - distance, 0)


def _cubic(distance: jax.Array) -> jax.Array:
    """The convolution kernel of Keys (1981), as PyTorch has it."""
    a = -0.75
    near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return jnp.where(distance <= 1, near, far)
