"""A second vision model that takes what a first one leaves as its patches, as in DeepSeek-OCR (arXiv 2510.18234).

Axis letters: P patches, C channels, V hidden size of the second model, D hidden size of the language model.
"""

from dataclasses import dataclass
from math import isqrt

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.forward_context import ALL_ROWS
from jaxllm.models.layers.embedding import Table
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.options import ForwardOptions
from jaxllm.models.towers.crop import as_one_text
from jaxllm.models.towers.plan import VisionPlan
from jaxllm.models.towers.repeated import RepeatedLayers
from jaxllm.models.towers.sam import Strides, resized_square
from jaxllm.models.towers.vision_layer import SeenCrop, VisionLayer, VisionLayerPlan


@dataclass(frozen=True, kw_only=True)
class SecondVisionPlan(VisionLayerPlan):
    """Every fourth patch each way through a class token's and CLIP's layers, and a product of both side by side.

    Positions are those of a square of `side` each way, resized to smaller crops. There are `inner_channels` between
    the two convolutions. A learned row, which no crop makes, comes first.
    """

    num_layers: int
    side: int
    inner_channels: int

    def make(
        self, vision: VisionPlan, patches_per_row: int, hidden_size: int, options: ForwardOptions, dtype: jnp.dtype
    ) -> "SecondVision":
        """The module."""
        return SecondVision(self, vision.hidden_size, hidden_size, options, dtype)


class SecondVision(nnx.Module):
    """See `SecondVisionPlan`."""

    def __init__(
        self, plan: SecondVisionPlan, channels: int, hidden_size: int, options: ForwardOptions, dtype: jnp.dtype
    ) -> None:
        size = plan.hidden_size
        self.strides = Strides((channels, plan.inner_channels, size), options, dtype)
        self.class_token = Table(1, size, dtype, options)
        self.positions = Table(plan.side**2 + 1, size, dtype, options)
        self.first_norm = make_norm(plan.norm, size, dtype=dtype, options=options)
        self.layers = RepeatedLayers(lambda: VisionLayer(plan, options, dtype), plan.num_layers, options)
        self.linear = Linear(2 * size, hidden_size, bias=True, dtype=dtype, axes=(None, None), options=options)
        self.separator = Table(1, hidden_size, dtype, options)

    def __call__(self, hidden: jax.Array, num_rows: jax.Array) -> jax.Array:
        """Rows [1 + P / 16, D] of [P, C], which come line by line. All of them count."""
        patches = self.strides(hidden)
        trained = self.positions.weight[...]
        positions = jnp.concatenate([trained[:1], resized_square(trained[1:], isqrt(len(patches)))])
        x = self.first_norm(jnp.concatenate([self.class_token.weight[...], patches]) + positions)
        crop = SeenCrop(as_one_text(jnp.int32(len(x)), len(x)))

        def step(layer: VisionLayer, number: jax.Array, x: jax.Array) -> jax.Array:
            return layer(x, crop)

        found = self.layers.run(step, x)[1:]
        rows = self.linear(jnp.concatenate([found, patches], axis=1), ALL_ROWS)
        return jnp.concatenate([self.separator.weight[...], rows])
