"""The vision transformers of Qwen2-VL, Qwen2.5-VL, Qwen3-VL and Qwen3.5, which see images of any size.

Queries and keys turn by the place of their patch: half of a head by its row, half by its column. Qwen2.5-VL attends
within windows in most layers (arXiv 2502.13923). Qwen3-VL adds learned positions, interpolated between those of a
square, and gives hidden states of several layers (DeepStack, arXiv 2406.04334).

Axis letters: P patches, B bytes of a patch, V hidden size of the transformer, N heads, H head size.
"""

from dataclasses import dataclass
from functools import partial

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
from jaxllm.models.towers.crop import Crop
from jaxllm.models.towers.plan import PixelPlan
from jaxllm.models.towers.repeated import RepeatedLayers
from jaxllm.models.towers.windows import Windows
from jaxllm.pallas_kernels.segment_attention.api import segment_attention
from jaxllm.pallas_kernels.segment_attention.segments import Segments

Carry = tuple[jax.Array, jax.Array]
"""Hidden states [P, V], and those of taps [n, P, V]."""


@dataclass(frozen=True, kw_only=True)
class QwenVisionPlan:
    """Such a vision transformer, of `size` V.

    Layers other than `full_layers` attend within windows of `window` squares of `merge` patches each way, if that is
    not 0. Learned positions are those of a square of `side` patches each way; 0: there are none. After the layers
    `taps` their hidden states are given too. A patch of a video spans so many `frames`; an image fills all of them.
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
    taps: tuple[int, ...] = ()
    channels: int = 3
    frames: int = 2

    @property
    def hidden_size(self) -> int:
        """Numbers that the projector gets for each patch: the hidden states of all taps, after the last layer's."""
        return self.size * (1 + len(self.taps))

    @property
    def head_size(self) -> int:
        """Size of a head."""
        return self.size // self.num_heads

    def make(self, pixels: PixelPlan, options: ForwardOptions, dtype: jnp.dtype) -> "QwenVision":
        """The module."""
        return QwenVision(self, pixels, options, dtype)


class QwenVision(nnx.Module):
    """The embedding of patches, then layers. See `QwenVisionPlan`."""

    def __init__(self, plan: QwenVisionPlan, pixels: PixelPlan, options: ForwardOptions, dtype: jnp.dtype) -> None:
        self.plan, self.pixels, self.dtype = plan, pixels, dtype
        inputs = plan.patch_size**2 * plan.channels
        self.patches = Linear(inputs, plan.size, bias=plan.patch_bias, dtype=dtype, axes=(None, None), options=options)
        self.positions = Table(plan.side**2, plan.size, dtype, options) if plan.side else None
        self.layers = RepeatedLayers(lambda: QwenVisionLayer(plan, options, dtype), plan.num_layers, options)

    def __call__(self, patches: jax.Array, crop: Crop) -> jax.Array:
        """Hidden states [P, V] of `patches` uint8 [P, B]; of several layers [P, n * V], those of the last first."""
        plan, context = self.plan, crop.context
        x = self.patches(self.pixels.numbers(patches).astype(self.dtype), context)
        if self.positions is not None:
            x = x + interpolated(self.positions, plan.side, crop).astype(x.dtype)
        rotation = place_rotation(crop.places, plan.head_size, plan.theta)
        windows = Windows.of(crop, plan.merge, plan.window) if plan.window else None
        if windows is not None:
            x, rotation = windows.sorted(x), jax.tree.map(windows.sorted, rotation)
        is_full = np.isin(np.arange(plan.num_layers), plan.full_layers)
        taps = np.array(plan.taps, np.int32)[:, None, None]

        def step(layer: QwenVisionLayer, number: jax.Array, carry: Carry) -> Carry:
            x, tapped = carry
            segments = crop.segments if windows is None else windows.segments_of(jnp.asarray(is_full)[number])
            x = layer(x, rotation, segments, context)
            return x, jnp.where(taps == number, x, tapped)

        x, tapped = self.layers.run(step, (x, jnp.zeros((len(taps), *x.shape), x.dtype)))
        x = jnp.concatenate([x, *tapped], axis=1) if plan.taps else x
        return x if windows is None else windows.restored(x)


class QwenVisionLayer(nnx.Module):
    """`x + attention(norm(x))`, then `x + mlp(norm(x))`."""

    def __init__(self, plan: QwenVisionPlan, options: ForwardOptions, dtype: jnp.dtype) -> None:
        linear = partial(Linear, bias=True, dtype=dtype, axes=(None, None), options=options)
        self.attention_norm = make_norm(plan.norm, plan.size, dtype=dtype, options=options)
        self.attention = QwenVisionAttention(plan, options, dtype)
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


class QwenVisionAttention(nnx.Module):
    """Attention of every patch to its crop, or to its window."""

    def __init__(self, plan: QwenVisionPlan, options: ForwardOptions, dtype: jnp.dtype) -> None:
        linear = partial(Linear, plan.size, plan.size, bias=True, dtype=dtype, axes=(None, None), options=options)
        self.query, self.key, self.value, self.output = linear(), linear(), linear(), linear()
        self.head_size = plan.head_size

    def __call__(self, x: jax.Array, rotation: Rotation, segments: Segments, context: ForwardContext) -> jax.Array:
        """Map [P, V] to [P, V]."""
        query, key, value = (
            project(x, context).reshape(len(x), -1, self.head_size) for project in (self.query, self.key, self.value)
        )
        query, key = rotate(query, rotation), rotate(key, rotation)
        attended = segment_attention(query, key, value, segments, scale=self.head_size**-0.5)
        return self.output(attended.reshape(x.shape), context)


def place_rotation(places: jax.Array, head_size: int, theta: float) -> Rotation:
    """Cosine and sine float32 [P, H / 2] for patches at `places` int32 [P, 2]: the first pairs turn by the row."""
    half = head_size // 2
    inverse = (1.0 / theta ** (np.arange(0, half, 2) / half)).astype(np.float32)
    angles = (places.astype(jnp.float32)[:, :, None] * inverse).reshape(len(places), half)
    return jnp.cos(angles), jnp.sin(angles)


def interpolated(table: Table, side: int, crop: Crop) -> jax.Array:
    """The learned positions of the patches, float32 [P, V], as if the crop covered the square from corner to corner.

    Each is the mean of the four that it lies between, by how near they are.
    """
    steps = jnp.float32(side - 1) / jnp.maximum(crop.size - 1, 1).astype(jnp.float32)
    exact = crop.places.astype(jnp.float32) * steps
    low = jnp.floor(exact)
    rest = exact - low
    found = jnp.float32(0)
    for down in (0, 1):
        for right in (0, 1):
            corner = jnp.clip(low.astype(jnp.int32) + jnp.array([down, right], jnp.int32), 0, side - 1)
            weight = jnp.where(down, rest[:, 0], 1 - rest[:, 0]) * jnp.where(right, rest[:, 1], 1 - rest[:, 1])
            found += table(corner[:, 0] * side + corner[:, 1]).astype(jnp.float32) * weight[:, None]
    return found
