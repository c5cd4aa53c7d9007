"""Projectors of Qwen's and GLM's vision models, which join the patches of a square.

Axis letters: P patches, R rows, V hidden size of the transformer, D hidden size of the language model.
"""

from dataclasses import dataclass
from functools import partial

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.forward_context import ForwardContext
from jaxllm.models.layers.activation import ACTIVATIONS
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.norm import make_norm
from jaxllm.models.norm_plan import NormPlan
from jaxllm.models.options import ForwardOptions
from jaxllm.models.towers.plan import VisionPlan


@dataclass(frozen=True, kw_only=True)
class MergerPlan:
    """A merger of the last hidden states, and one for each of `taps` others, with parameters of its own.

    The first has its norm over each patch, the others over all patches of a square.
    """

    norm: NormPlan
    taps: int = 0

    def make(
        self, vision: VisionPlan, patches_per_row: int, hidden_size: int, options: ForwardOptions, dtype: jnp.dtype
    ) -> "Mergers":
        """The module."""
        size = vision.hidden_size // (1 + self.taps)
        make = partial(Merger, self.norm, size, patches_per_row, hidden_size, options, dtype)
        return Mergers(make(norm_last=False), [make(norm_last=True) for _ in range(self.taps)])


class Mergers(nnx.Module):
    """See `MergerPlan`."""

    def __init__(self, last: "Merger", taps: list["Merger"]) -> None:
        self.last, self.taps = last, nnx.List(taps)

    def __call__(self, hidden: jax.Array, num_rows: jax.Array) -> jax.Array:
        """Rows [R, n * D] of [P, n * V], part by part."""
        context = ForwardContext(num_rows)
        parts = jnp.split(hidden, 1 + len(self.taps), axis=1)
        rows = [merge(part, context) for merge, part in zip([self.last, *self.taps], parts, strict=True)]
        return jnp.concatenate(rows, axis=1) if len(rows) > 1 else rows[0]


class Merger(nnx.Module):
    """`down(gelu(up(norm(x))))`, of the patches of a square side by side."""

    def __init__(
        self,
        norm: NormPlan,
        size: int,
        patches_per_row: int,
        hidden_size: int,
        options: ForwardOptions,
        dtype: jnp.dtype,
        *,
        norm_last: bool,
    ) -> None:
        joined = size * patches_per_row
        linear = partial(Linear, joined, bias=True, dtype=dtype, axes=(None, None), options=options)
        self.norm = make_norm(norm, joined if norm_last else size, dtype=dtype, options=options)
        self.up, self.down = linear(joined), linear(hidden_size)
        self.joined, self.norm_last = joined, norm_last

    def __call__(self, hidden: jax.Array, context: ForwardContext) -> jax.Array:
        """Rows [R, D] of [P, V]."""
        if self.norm_last:
            x = self.norm(hidden.reshape(-1, self.joined))
        else:
            x = self.norm(hidden).reshape(-1, self.joined)
        return self.down(ACTIVATIONS["gelu"](self.up(x, context)), context)


@dataclass(frozen=True, kw_only=True)
class GatedMergerPlan:
    """GLM-4V's: two products with a norm and GELU after them, then a gated block of `size`."""

    size: int
    activation: str
    norm: NormPlan = NormPlan(kind="layer", eps=1e-5, bias=True)

    def make(
        self, vision: VisionPlan, patches_per_row: int, hidden_size: int, options: ForwardOptions, dtype: jnp.dtype
    ) -> "GatedMerger":
        """The module."""
        return GatedMerger(self, vision.hidden_size * patches_per_row, hidden_size, options, dtype)


class GatedMerger(nnx.Module):
    """See `GatedMergerPlan`; `joined` are the numbers of a square's patches."""

    def __init__(
        self, plan: GatedMergerPlan, joined: int, hidden_size: int, options: ForwardOptions, dtype: jnp.dtype
    ) -> None:
        linear = partial(Linear, dtype=dtype, axes=(None, None), options=options)
        self.joint = linear(joined, hidden_size, bias=True)
        self.inner = linear(hidden_size, hidden_size, bias=False)
        self.norm = make_norm(plan.norm, hidden_size, dtype=dtype, options=options)
        self.gate, self.up = (linear(hidden_size, plan.size, bias=False) for _ in range(2))
        self.down = linear(plan.size, hidden_size, bias=False)
        self.joined, self.activation = joined, plan.activation

    def __call__(self, hidden: jax.Array, num_rows: jax.Array) -> jax.Array:
        """Rows [R, D] of [P, V]."""
        context = ForwardContext(num_rows)
        x = self.inner(self.joint(hidden.reshape(-1, self.joined), context), context)
        x = ACTIVATIONS["gelu"](self.norm(x))
        return self.down(ACTIVATIONS[self.activation](self.gate(x, context)) * self.up(x, context), context)
