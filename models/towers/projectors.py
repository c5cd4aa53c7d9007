"""Projectors: hidden states of patches to rows in place of tokens.

Axis letters: P patches, V hidden size of the transformer, D hidden size of the language model.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.forward_context import ForwardContext
from jaxllm.models.layers.linear import Linear
from jaxllm.models.options import ForwardOptions
from jaxllm.models.towers.plan import VisionPlan


@dataclass(frozen=True)
class JoinedPlan:
    """One product of the hidden states of a square's patches together."""

    bias: bool = False

    def make(
        self, vision: VisionPlan, patches_per_row: int, hidden_size: int, options: ForwardOptions, dtype: jnp.dtype
    ) -> "JoinedProjector":
        """The module."""
        linear = Linear(
            vision.hidden_size * patches_per_row,
            hidden_size,
            bias=self.bias,
            dtype=dtype,
            axes=(None, None),
            options=options,
        )
        return JoinedProjector(linear, patches_per_row)


class JoinedProjector(nnx.Module):
    """See `JoinedPlan`."""

    def __init__(self, linear: Linear, patches_per_row: int) -> None:
        self.linear, self.patches_per_row = linear, patches_per_row

    def __call__(self, hidden: jax.Array, num_rows: jax.Array) -> jax.Array:
        """Rows [P / patches_per_row, D] of [P, V]."""
        # The patches of a square lie one after the other: to join them moves nothing.
        joined = hidden.reshape(len(hidden) // self.patches_per_row, -1)
        return self.linear(joined, ForwardContext(num_rows))
