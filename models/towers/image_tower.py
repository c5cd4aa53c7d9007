"""The tower of a model that sees images: from the bytes of a crop to rows in place of tokens.

Axis letters: P patches, B bytes of a patch, V hidden size of the transformer, D hidden size of the language model.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.forward_context import ForwardContext
from jaxllm.models.layers.linear import Linear
from jaxllm.models.options import ForwardOptions
from jaxllm.models.towers.crop import Crop
from jaxllm.models.towers.plan import TowerPlan
from jaxllm.models.towers.vision_transformer import VisionTransformer


class ImageTower(nnx.Module):
    """A vision transformer, and a projection of the patches of a square together."""

    def __init__(self, plan: TowerPlan, hidden_size: int, options: ForwardOptions, dtype: jnp.dtype) -> None:
        self.plan = plan
        self.vision = VisionTransformer(plan.vision, plan.pixels, options, dtype)
        size = plan.vision.hidden_size * plan.patches_per_row
        self.projection = Linear(size, hidden_size, bias=False, dtype=dtype, axes=(None, None), options=options)

    def __call__(self, patches: jax.Array, crop: Crop) -> jax.Array:
        """Rows [P / patches_per_row, D] of the `patches` uint8 [P, B] of a crop, in the order of `TowerPlan`."""
        hidden = self.vision(patches, crop)
        # The patches of a square lie one after the other: to join them moves nothing.
        joined = hidden.reshape(len(hidden) // self.plan.patches_per_row, -1)
        return self.projection(joined, ForwardContext(crop.num_patches // self.plan.patches_per_row))
