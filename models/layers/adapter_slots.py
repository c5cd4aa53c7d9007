"""Adapters of low rank (LoRA, arXiv 2106.09685) of the linear layers of a model: slots for those of a step.

Axis letters: S slots, Q the rank of every slot, P parts of a merged matrix.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.parameter import LayerOf, Merged, placeholder
from jaxllm.models.options import AdapterShape
from jaxllm.models.sharding import sharding
from jaxllm.pallas_kernels.low_rank import LowRank, Outputs, TokenSlots, add_low_rank


class AdapterArray(nnx.Variable[jax.Array]):
    """An array of the adapters in all slots. Not a parameter: no checkpoint of the model has it."""


@dataclass(frozen=True)
class _Whole:
    """A layout of arrays that are not sliced by layer: a product reads few slots of one layer."""

    in_stack: bool = True


class AdapterSlots(nnx.Module):
    """The term that the adapters in the slots add to the product of one linear layer.

    `down` [S, P * Q, in] is split over devices like the inputs of the layer, `up` [S, Q, out] like its outputs.
    """

    def __init__(self, linear: Linear, shape: AdapterShape) -> None:
        out_size, in_size = linear.layout.shape
        out_axis, in_axis = linear.axes
        rows = linear.rows
        sizes = tuple(part.size for part in rows.parts) if isinstance(rows, Merged) else (out_size,)
        self.outputs = Outputs(sizes, rows.blocks if isinstance(rows, Merged) else 1)
        assert self.outputs.total == out_size
        slots, rank, dtype = shape.num_slots, shape.rank, jnp.dtype(shape.dtype)
        about: dict[str, Any] = {"layout": _Whole()}
        down = placeholder((slots, len(sizes) * rank, in_size), dtype, sharding(linear.mesh, None, None, in_axis))
        up = placeholder((slots, rank, out_size), dtype, sharding(linear.mesh, None, None, out_axis))
        self.down, self.up = AdapterArray(down, **about), AdapterArray(up, **about)

    def add(self, base: jax.Array, x: jax.Array, tokens: TokenSlots) -> jax.Array:
        """`base` [T, out] and the product of every token's `x` [T, in] with the adapter of its slot."""
        return add_low_rank(base, x, self._matrices(), tokens)

    def _matrices(self) -> LowRank:
        down: Any = self.down.get_raw_value()
        up: Any = self.up.get_raw_value()
        if isinstance(down, LayerOf):
            return LowRank(down.stack, up.stack, down.layer, self.outputs)
        return LowRank(down, up, None, self.outputs)


def add_adapter_slots(layer: nnx.Module, shape: AdapterShape) -> nnx.Module:
    """The layer with slots at each of its linear layers."""
    # A list: giving a module parameters changes what is walked over.
    for _, module in list(nnx.iter_modules(layer)):
        if isinstance(module, Linear) and module.takes_adapters:
            module.adapters = nnx.data(AdapterSlots(module, shape))
    return layer


@dataclass(frozen=True)
class AdaptedGraph:
    """A model with slots for adapters, without its arrays."""

    graph: nnx.GraphDef[Any]
    tree: Any
    """The structure of the slots' arrays."""

    def merge(self, parameters: Any, adapters: Sequence[jax.Array]) -> Any:
        """The model with these parameters, and the arrays of its slots."""
        return nnx.merge(self.graph, jax.tree.unflatten(self.tree, adapters), parameters)


def split_adapters(model: nnx.Module) -> tuple[AdaptedGraph, dict[tuple[str | int, ...], jax.Array]]:
    """The graph of a model with slots, and the arrays of these, by their path in the model, in order."""
    split: Any = nnx.split(model, AdapterArray, ...)
    graph, adapters, _ = split
    flat: Any = nnx.to_flat_state(adapters)
    return AdaptedGraph(graph, jax.tree.structure(adapters)), {path: each.get_raw_value() for path, each in flat}
