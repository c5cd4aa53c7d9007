"""The projector of Gemma 3: the mean of a square's patches, normalised, times a matrix.

Axis letters: P patches, V hidden size of the transformer, D hidden size of the language model.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.forward_context import ForwardContext
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import AnyNorm, make_norm
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.options import ForwardOptions
from jaxllm.models.towers.plan import VisionPlan


@dataclass(frozen=True)
class PooledPlan:
    """One product of the mean of a square's hidden states, through a norm."""

    norm: NormPlan

    def make(
        self, vision: VisionPlan, patches_per_row: int, hidden_size: int, options: ForwardOptions, dtype: jnp.dtype
    ) -> "PooledProjector":
        """The module."""
        size = vision.hidden_size
        norm = make_norm(self.norm, size, dtype=dtype, options=options)
        linear = Linear(size, hidden_size, bias=False, dtype=dtype, axes=(None, None), options=options)
        return PooledProjector(norm, linear, patches_per_row)


class PooledProjector(nnx.Module):
    """See `PooledPlan`."""

    def __init__(self, norm: AnyNorm, linear: Linear, patches_per_row: int) -> None:
        self.norm, self.linear, self.patches_per_row = norm, linear, patches_per_row

    def __call__(self, hidden: jax.Array, num_rows: jax.Array) -> jax.Array:
        """Rows [P / patches_per_row, D] of [P, V]."""
        # The patches of a square lie one after the other.
        squares = hidden.reshape(-1, self.patches_per_row, hidden.shape[1])
        mean = squares.mean(axis=1, dtype=jnp.float32).astype(hidden.dtype)
        return self.linear(self.norm(mean), ForwardContext(num_rows))
