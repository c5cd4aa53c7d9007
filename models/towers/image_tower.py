"""The tower of a model that sees images: from the bytes of a crop to rows in place of tokens.

Axis letters: P patches, B bytes of a patch, D hidden size of the language model.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.options import ForwardOptions
from jaxllm.models.towers.crop import Crop
from jaxllm.models.towers.plan import TowerPlan


class ImageTower(nnx.Module):
    """A vision model, and a projector."""

    def __init__(self, plan: TowerPlan, hidden_size: int, options: ForwardOptions, dtype: jnp.dtype) -> None:
        self.plan = plan
        self.vision = plan.vision.make(plan.pixels, options, dtype)
        self.projector = plan.projector.make(plan.vision, plan.patches_per_row, hidden_size, options, dtype)

    def __call__(self, patches: jax.Array, crop: Crop) -> jax.Array:
        """Rows [P / patches_per_row, D] of the `patches` uint8 [P, B] of a crop, in the order of `TowerPlan`."""
        return self.projector(self.vision(patches, crop), crop.num_patches // self.plan.patches_per_row)
