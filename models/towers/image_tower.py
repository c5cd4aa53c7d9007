"""The tower of a model that sees images: from the bytes of a crop to rows in place of tokens.

Axis letters: P patches, B bytes of a patch, R rows, D hidden size of the language model.
"""

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.layers.embedding import Table
from jaxllm.models.options import ForwardOptions
from jaxllm.models.towers.crop import Crop
from jaxllm.models.towers.plan import TowerPlan


class ImageTower(nnx.Module):
    """A vision model, a projector, and a learned row, if there is one."""

    def __init__(self, plan: TowerPlan, hidden_size: int, options: ForwardOptions, dtype: jnp.dtype) -> None:
        self.plan = plan
        self.vision = plan.vision.make(plan.pixels, options, dtype)
        self.projector = plan.projector.make(plan.vision, plan.patches_per_row, hidden_size, options, dtype)
        self.learned_row = Table(1, hidden_size, dtype, options) if plan.has_learned_row else None

    def __call__(self, patches: jax.Array, crop: Crop) -> jax.Array:
        """Rows [R, D] of the `patches` uint8 [P, B] of a crop, where R is `TowerPlan.rows_of` P."""
        plan = self.plan
        num_rows = crop.num_patches // plan.patches_per_row + plan.class_rows
        rows = self.projector(self.vision(patches, crop), num_rows)
        return rows if self.learned_row is None else jnp.concatenate([self.learned_row.weight[...], rows])
