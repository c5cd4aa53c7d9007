"""Projectors: hidden states of patches to rows in place of tokens.

Axis letters: P patches, V hidden size of the transformer, D hidden size of the language model.
"""

from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.forward_context import ForwardContext
from jaxllm.models.layers.activation import ACTIVATIONS
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import AnyNorm, make_norm
from jaxllm.models.norm_plan import NormPlan
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
        return self.linear(side_by_side(hidden, self.patches_per_row), ForwardContext(num_rows))


@dataclass(frozen=True)
class TwoLayerPlan:
    """An activation between two products of the hidden states of a square's patches together.

    The states may go through a norm first, those of a square together. Of each patch there are the states of `layers`
    layers of the vision model. Between the products there are as many elements as the language model has, unless
    `inner_size` says otherwise. With `is_gated`, the activation is of the second half of them, times the first.
    """

    activation: str
    bias: bool = True
    norm: NormPlan | None = None
    layers: int = 1
    inner_size: int | None = None
    is_gated: bool = False

    def make(
        self, vision: VisionPlan, patches_per_row: int, hidden_size: int, options: ForwardOptions, dtype: jnp.dtype
    ) -> "TwoLayerProjector":
        """The module."""
        joined = vision.hidden_size * self.layers * patches_per_row
        return TwoLayerProjector(self, joined, patches_per_row, hidden_size, options, dtype)


class TwoLayerProjector(nnx.Module):
    """See `TwoLayerPlan`."""

    def __init__(
        self,
        plan: TwoLayerPlan,
        joined: int,
        patches_per_row: int,
        hidden_size: int,
        options: ForwardOptions,
        dtype: jnp.dtype,
    ) -> None:
        linear = partial(Linear, bias=plan.bias, dtype=dtype, axes=(None, None), options=options)
        self.norm = make_norm(plan.norm, joined, dtype=dtype, options=options)
        inner = plan.inner_size or hidden_size
        self.first, self.second = linear(joined, inner), linear(inner // (1 + plan.is_gated), hidden_size)
        self.plan, self.patches_per_row = plan, patches_per_row

    def __call__(self, hidden: jax.Array, num_rows: jax.Array) -> jax.Array:
        """Rows [P / patches_per_row, D] of [P, V]."""
        context = ForwardContext(num_rows)
        activation = ACTIVATIONS[self.plan.activation]
        inner = self.first(self.norm(side_by_side(hidden, self.patches_per_row)), context)
        if not self.plan.is_gated:
            return self.second(activation(inner), context)
        up, gate = jnp.split(inner, 2, axis=1)
        return self.second(activation(gate) * up, context)


@dataclass(frozen=True)
class ChainPlan:
    """Products of the hidden states of a square's patches together, of `sizes`, with an activation after each.

    One more makes the row of that. None has a bias.
    """

    activation: str
    sizes: tuple[int, ...]

    def make(
        self, vision: VisionPlan, patches_per_row: int, hidden_size: int, options: ForwardOptions, dtype: jnp.dtype
    ) -> "ChainProjector":
        """The module."""
        linear = partial(Linear, bias=False, dtype=dtype, axes=(None, None), options=options)
        sizes = (vision.hidden_size * patches_per_row, *self.sizes)
        inner = [linear(*pair) for pair in pairwise(sizes)]
        return ChainProjector(self.activation, inner, linear(sizes[-1], hidden_size), patches_per_row)


class ChainProjector(nnx.Module):
    """See `ChainPlan`."""

    def __init__(self, activation: str, inner: list[Linear], last: Linear, patches_per_row: int) -> None:
        self.inner, self.last = nnx.List(inner), last
        self.activation, self.patches_per_row = activation, patches_per_row

    def __call__(self, hidden: jax.Array, num_rows: jax.Array) -> jax.Array:
        """Rows [P / patches_per_row, D] of [P, V]."""
        context = ForwardContext(num_rows)
        x = side_by_side(hidden, self.patches_per_row)
        for linear in self.inner:
            x = ACTIVATIONS[self.activation](linear(x, context))
        return self.last(x, context)


@dataclass(frozen=True)
class MergedPlan:
    """A norm of each patch, and a product of a square's patches together, of their size, before another projector."""

    projector: TwoLayerPlan
    norm: NormPlan

    def make(
        self, vision: VisionPlan, patches_per_row: int, hidden_size: int, options: ForwardOptions, dtype: jnp.dtype
    ) -> "MergedProjector":
        """The module."""
        size = vision.hidden_size
        merge = Linear(size * patches_per_row, size, bias=False, dtype=dtype, axes=(None, None), options=options)
        norm = make_norm(self.norm, size, dtype=dtype, options=options)
        return MergedProjector(norm, merge, self.projector.make(vision, 1, hidden_size, options, dtype))


class MergedProjector(nnx.Module):
    """See `MergedPlan`."""

    def __init__(self, norm: AnyNorm, merge: Linear, projector: TwoLayerProjector) -> None:
        self.norm, self.merge, self.projector = norm, merge, projector

    def __call__(self, hidden: jax.Array, num_rows: jax.Array) -> jax.Array:
        """Rows [P / patches_per_row, D] of [P, V]."""
        patches_per_row = self.merge.layout.shape[1] // hidden.shape[1]
        merged = self.merge(side_by_side(self.norm(hidden), patches_per_row), ForwardContext(num_rows))
        return self.projector(merged, num_rows)


def side_by_side(hidden: jax.Array, patches_per_row: int) -> jax.Array:
    """The hidden states [P, V] of each square's patches together. They lie one after the other: nothing moves."""
    return hidden.reshape(len(hidden) // patches_per_row, -1)
