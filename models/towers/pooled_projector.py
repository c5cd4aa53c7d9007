"""Projectors of the mean of a square's patches, such as Gemma 3's, and of other states besides patches'.

Axis letters: P patches, V hidden size of the transformer, D hidden size of the language model.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.forward_context import ForwardContext
from jaxllm.models.layers.activation import ACTIVATIONS
from jaxllm.models.layers.embedding import Table
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import AnyNorm, make_norm
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.options import ForwardOptions
from jaxllm.models.towers.plan import VisionPlan
from jaxllm.models.towers.projectors import TwoLayerPlan, TwoLayerProjector, side_by_side


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
        return self.linear(self.norm(_means(hidden, self.patches_per_row)), ForwardContext(num_rows))


@dataclass(frozen=True)
class LearnedTwoLayerPlan:
    """An activation between two products of the mean of a square's hidden states, or of all of them if it `joins`.

    Likewise of two learned states, that of the end of a line and that between two images. Their rows come first: they
    are class rows of the `TowerPlan`.
    """

    activation: str
    joins: bool = False

    def make(
        self, vision: VisionPlan, patches_per_row: int, hidden_size: int, options: ForwardOptions, dtype: jnp.dtype
    ) -> "LearnedTwoLayer":
        """The module."""
        size = vision.hidden_size * (patches_per_row if self.joins else 1)
        return LearnedTwoLayer(self, size, patches_per_row, hidden_size, options, dtype)


class LearnedTwoLayer(nnx.Module):
    """See `LearnedTwoLayerPlan`."""

    def __init__(
        self,
        plan: LearnedTwoLayerPlan,
        size: int,
        patches_per_row: int,
        hidden_size: int,
        options: ForwardOptions,
        dtype: jnp.dtype,
    ) -> None:
        linear = partial(Linear, bias=True, dtype=dtype, axes=(None, None), options=options)
        self.line_end, self.between = (Table(1, size, dtype, options) for _ in range(2))
        self.first, self.second = linear(size, hidden_size), linear(hidden_size, hidden_size)
        self.plan, self.patches_per_row = plan, patches_per_row

    def __call__(self, hidden: jax.Array, num_rows: jax.Array) -> jax.Array:
        """Rows [2 + P / patches_per_row, D] of [P, V]."""
        context = ForwardContext(num_rows)
        learned = self.line_end.weight[...], self.between.weight[...]
        squares = (side_by_side if self.plan.joins else _means)(hidden, self.patches_per_row)
        states = jnp.concatenate([*learned, squares])
        return self.second(ACTIVATIONS[self.plan.activation](self.first(states, context)), context)


@dataclass(frozen=True)
class AlsoMeansPlan:
    """Another projector, also of the means of squares of `size` patches each way, whose rows come first.

    Crops have `side` patches each way, which lie line by line. Rows of means are class rows of the `TowerPlan`.
    """

    projector: TwoLayerPlan
    side: int
    size: int

    def make(
        self, vision: VisionPlan, patches_per_row: int, hidden_size: int, options: ForwardOptions, dtype: jnp.dtype
    ) -> "AlsoMeans":
        """The module."""
        return AlsoMeans(self, self.projector.make(vision, patches_per_row, hidden_size, options, dtype))


class AlsoMeans(TwoLayerProjector):
    """See `AlsoMeansPlan`. Its weights have the names that the other projector's have."""

    def __init__(self, plan: AlsoMeansPlan, projector: TwoLayerProjector) -> None:
        self.norm, self.first, self.second = projector.norm, projector.first, projector.second
        self.plan, self.patches_per_row, self.means = projector.plan, projector.patches_per_row, plan

    def __call__(self, hidden: jax.Array, num_rows: jax.Array) -> jax.Array:
        """Rows [(side / size) ** 2 + P, D] of [P, V]."""
        plan = self.means
        few = plan.side // plan.size
        squares = hidden[: plan.side**2].reshape(few, plan.size, few, plan.size, -1)
        means = squares.mean(axis=(1, 3), dtype=jnp.float32).reshape(few * few, -1).astype(hidden.dtype)
        return super().__call__(jnp.concatenate([means, hidden]), num_rows)


def _means(hidden: jax.Array, patches_per_row: int) -> jax.Array:
    """The means [P / patches_per_row, V] of the hidden states [P, V] of each square."""
    # The patches of a square lie one after the other.
    squares = hidden.reshape(-1, patches_per_row, hidden.shape[1])
    return squares.mean(axis=1, dtype=jnp.float32).astype(hidden.dtype)
