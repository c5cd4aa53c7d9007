"""MiniCPM-V 4.6's vision model: SigLIP whose tokens are merged, four to one, after some of its layers.

Axis letters: P patches, B bytes of a patch, V hidden size of the transformer, W windows of patches.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.forward_context import ALL_ROWS, ForwardContext
from jaxllm.models.layers.activation import ACTIVATIONS
from jaxllm.models.layers.embedding import Table
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.options import ForwardOptions
from jaxllm.models.towers.crop import Crop, as_one_text
from jaxllm.models.towers.plan import PixelPlan, Projector, ProjectorPlan, VisionPlan
from jaxllm.models.towers.repeated import RepeatedLayers
from jaxllm.models.towers.vision_layer import SeenCrop, VisionLayer, VisionLayerPlan

WINDOW = 4
"""Patches that become one, of a square of two each way."""


@dataclass(frozen=True, kw_only=True)
class MergingPlan(VisionLayerPlan):
    """Learned positions of a square of `side` patches each way; crops take the nearest ones.

    After `num_early` of `num_layers` layers, the tokens of each window attend to one another, and become one.
    """

    num_layers: int
    num_early: int
    patch_size: int
    side: int
    channels: int = 3

    def make(self, pixels: PixelPlan, options: ForwardOptions, dtype: jnp.dtype) -> "MergingVision":
        """The module."""
        return MergingVision(self, pixels, options, dtype)


class MergingVision(nnx.Module):
    """See `MergingPlan`. Squares have four patches each way."""

    def __init__(self, plan: MergingPlan, pixels: PixelPlan, options: ForwardOptions, dtype: jnp.dtype) -> None:
        self.plan, self.pixels, self.dtype = plan, pixels, dtype
        size, given = plan.hidden_size, plan.patch_size**2 * plan.channels
        self.patches = Linear(given, size, bias=True, dtype=dtype, axes=(None, None), options=options)
        self.positions = Table(plan.side**2, size, dtype, options)
        self.early, self.late = (
            RepeatedLayers(lambda: VisionLayer(plan, options, dtype), count, options)
            for count in (plan.num_early, plan.num_layers - plan.num_early)
        )
        self.merger = WindowMerger(plan, options, dtype)
        self.norm = make_norm(plan.norm, size, dtype=dtype, options=options)

    def __call__(self, patches: jax.Array, crop: Crop) -> jax.Array:
        """Hidden states [P / 4, V] of `patches` uint8 [P, B]: those of each square next to each other."""
        places = crop.places * self.plan.side // jnp.maximum(crop.size, 1)
        x = self.patches(self.pixels.numbers(patches).astype(self.dtype), crop.context)
        x = x + self.positions(places[:, 0] * self.plan.side + places[:, 1])
        x = self._run(self.early, x, crop.num_patches)
        x = self.merger(windows(x), crop.num_patches // WINDOW)
        return self.norm(self._run(self.late, x, crop.num_patches // WINDOW))

    def _run(self, layers: RepeatedLayers, x: jax.Array, count: jax.Array) -> jax.Array:
        seen = SeenCrop(as_one_text(count, len(x)))
        found: jax.Array = layers.run(lambda layer, number, x: layer(x, seen), x)
        return found


class WindowMerger(nnx.Module):
    """Attention within windows, and one token of the four: their mean, and what an MLP makes of them together."""

    def __init__(self, plan: MergingPlan, options: ForwardOptions, dtype: jnp.dtype) -> None:
        size, wide = plan.hidden_size, plan.hidden_size * WINDOW
        linear = partial(Linear, bias=True, dtype=dtype, axes=(None, None), options=options)
        norm = partial(make_norm, plan.norm, dtype=dtype, options=options)
        self.attention_norm, self.mlp_norm = norm(size), norm(wide)
        self.query, self.key, self.value, self.output = (linear(size, size) for _ in range(4))
        self.up, self.down = (
            linear(wide, plan.intermediate_size * WINDOW),
            linear(plan.intermediate_size * WINDOW, size),
        )
        self.num_heads = plan.num_heads

    def __call__(self, x: jax.Array, num_windows: jax.Array) -> jax.Array:
        """Map windows [W, 4, V] to [W, V]."""
        whole, context = x.shape, ForwardContext(num_windows)
        given = self.attention_norm(x).reshape(-1, whole[-1])
        heads = (*whole[:2], self.num_heads, -1)
        query, key, value = (each(given, ALL_ROWS).reshape(heads) for each in (self.query, self.key, self.value))
        scores = jnp.einsum("wqnh,wknh->wnqk", query, key, preferred_element_type=jnp.float32)
        weights = jax.nn.softmax(scores * query.shape[-1] ** -0.5, axis=-1).astype(x.dtype)
        attended = jnp.einsum("wnqk,wknh->wqnh", weights, value).reshape(given.shape)
        x = x + self.output(attended, ALL_ROWS).reshape(whole)
        inner = ACTIVATIONS["gelu_pytorch_tanh"](self.up(self.mlp_norm(x.reshape(len(x), -1)), context))
        return self.down(inner, context) + x.mean(axis=1, dtype=jnp.float32).astype(x.dtype)


def windows(x: jax.Array) -> jax.Array:
    """The patches [P, V] of squares of four each way, row by row, as windows of two each way: [P / 4, 4, V]."""
    apart = x.reshape(-1, 2, 2, 2, 2, x.shape[-1])
    return apart.transpose(0, 1, 3, 2, 4, 5).reshape(-1, WINDOW, x.shape[-1])


@dataclass(frozen=True)
class AfterMergingPlan:
    """A projector of what is merged already: so many times fewer states than patches."""

    projector: ProjectorPlan

    def make(
        self, vision: VisionPlan, patches_per_row: int, hidden_size: int, options: ForwardOptions, dtype: jnp.dtype
    ) -> Projector:
        """The module."""
        return self.projector.make(vision, patches_per_row // WINDOW, hidden_size, options, dtype)
