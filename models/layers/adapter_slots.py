"""Adapters of low rank (LoRA, arXiv 2106.09685) of the linear layers of a model: slots for those of a step.

Axis letters: S slots, Q the rank of every slot, P parts of a merged matrix.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from jaxllm.models.layers.head_projection import HeadProjection
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.parameter import LayerOf, Merged, placeholder
from jaxllm.models.options import AdapterShape
from jaxllm.models.sharding import sharding
from jaxllm.pallas_kernels.linear import NOTHING, Fused
from jaxllm.pallas_kernels.low_rank import LowRank, Outputs, TokenSlots, add_low_rank, can_add


class AdapterArray(nnx.Variable[jax.Array]):
    """An array of the adapters in all slots. Not a parameter: no checkpoint of the model has it."""


@dataclass(frozen=True)
class _Whole:
    """A layout of arrays that are not sliced by layer: a product reads few slots of one layer."""

    in_stack: bool = True


WHOLE: Final = _Whole()


@runtime_checkable
class TakesSlots(Protocol):
    """A layer that makes its own slots for adapters."""

    def add_slots(self, shape: AdapterShape) -> None:
        """Have slots of this shape, if it has some for such layers."""
        ...


class AdapterSlots(nnx.Module):
    """The term that the adapters in the slots add to the product of one linear layer.

    `down` [S, P * Q, in] is split over devices like the inputs of the layer, `up` [S, Q, out] like its outputs.
    If slots have vectors, all float32 [S, 1, out]: the product with the adapter is multiplied by `scale`, then `bias`
    is added, and the layer's own bias multiplied by `base_bias`: 0 where the adapter brings another one.
    """

    def __init__(self, linear: Linear, shape: AdapterShape) -> None:
        out_size, in_size = linear.layout.shape
        out_axis, in_axis = linear.axes
        rows = linear.rows
        sizes = tuple(part.size for part in rows.parts) if isinstance(rows, Merged) else (out_size,)
        self.outputs = Outputs(sizes, rows.blocks if isinstance(rows, Merged) else 1)
        assert self.outputs.total == out_size
        is_native = linear.is_native and can_add(in_size, self.outputs, shape.dtype)
        in_place = "cpu_narrow" if linear.multiplies_pairs else "cpu"
        self.implementation = in_place if is_native else "xla"
        slots, rank, dtype = shape.num_slots, shape.rank, jnp.dtype(shape.dtype)
        about: dict[str, Any] = {"layout": WHOLE}
        down = placeholder((slots, len(sizes) * rank, in_size), dtype, sharding(linear.mesh, None, None, in_axis))
        up = placeholder((slots, rank, out_size), dtype, sharding(linear.mesh, None, None, out_axis))
        self.down, self.up = AdapterArray(down, **about), AdapterArray(up, **about)

        def vector() -> AdapterArray:
            place = sharding(linear.mesh, None, None, out_axis)
            return AdapterArray(placeholder((slots, 1, out_size), jnp.dtype(jnp.float32), place), **about)

        self.scale = vector() if shape.has_vectors else None
        self.bias = vector() if shape.has_vectors else None
        self.base_bias = vector() if shape.has_vectors and linear.bias is not None else None

    @property
    def takes_rounded(self) -> bool:
        """Whether `add` is fastest with a `base` in the type of the activations."""
        return self.implementation == "cpu_narrow" and self.scale is None

    def add(self, base: jax.Array, x: jax.Array, tokens: TokenSlots, fused: Fused = NOTHING) -> jax.Array:
        """`base` [T, out] plus the product of every token's `x`, as `fused` prepares it, with its adapter."""
        return add_low_rank(base, x, self._matrices(), tokens, fused, implementation=self.implementation)

    def scaled(self, out: jax.Array, tokens: TokenSlots) -> jax.Array:
        """`out` [T, out], of every token multiplied by what its adapter says; the same where slots have no vectors."""
        if self.scale is None:
            return out
        wide = out.astype(jnp.float32) * _of_tokens(self.scale, tokens)
        return jnp.where(tokens.slots[:, None] >= 0, wide.astype(out.dtype), out)

    def biased(self, out: jax.Array, base_bias: jax.Array | None, tokens: TokenSlots) -> jax.Array:
        """`out` [T, out] and the biases: the layer's own [out], if it has one, and those of every token's adapter."""
        has_adapter = tokens.slots[:, None] >= 0
        if base_bias is not None:
            own = base_bias.astype(out.dtype)
            if self.base_bias is not None:
                own = jnp.where(has_adapter & (_of_tokens(self.base_bias, tokens) == 0), 0, own)
            out = out + own
        if self.bias is None:
            return out
        return jnp.where(has_adapter, out + _of_tokens(self.bias, tokens).astype(out.dtype), out)

    def _matrices(self) -> LowRank:
        down: Any = self.down.get_raw_value()
        up: Any = self.up.get_raw_value()
        if isinstance(down, LayerOf):
            return LowRank(down.stack, up.stack, down.layer, self.outputs)
        return LowRank(down, up, None, self.outputs)


class HeadSlots(nnx.Module):
    """What the adapters in the slots add to the products of the matrices of heads, `HeadProjection`.

    `down` [S, Q, in] is for all heads, `up` [S, Q, N * out] is split over devices by heads.
    """

    def __init__(self, projection: HeadProjection, shape: AdapterShape) -> None:
        heads, out_size, in_size = projection.shape
        slots, rank, dtype, mesh = shape.num_slots, shape.rank, jnp.dtype(shape.dtype), projection.options.mesh
        about: dict[str, Any] = {"layout": WHOLE}
        self.heads, self.num_slots = heads, slots
        self.down = AdapterArray(placeholder((slots, rank, in_size), dtype, sharding(mesh, None, None, None)), **about)
        up = placeholder((slots, rank, heads * out_size), dtype, sharding(mesh, None, None, "heads"))
        self.up = AdapterArray(up, **about)

    def add(self, base: jax.Array, x: jax.Array, tokens: TokenSlots, *, is_transposed: bool) -> jax.Array:
        """`base` [T, N, ...] float32, and the product of every token's `x` [T, N, ...] with its adapter's matrices."""
        count, wide = len(x), jnp.float32
        # XLA multiplies a single row by other code, which adds up in another order.
        rows = jnp.pad(x, ((0, max(0, 2 - count)), (0, 0), (0, 0))).astype(wide)
        slots = jnp.arange(self.num_slots, dtype=jnp.int32)
        is_used = jnp.any(tokens.slots[:, None] == slots, axis=0)
        order = jnp.argsort(~is_used, stable=True).astype(jnp.int32)

        def add_slot(index: jax.Array, out: jax.Array) -> jax.Array:
            slot = order[index]
            down, up = _of_slot(self.down, slot).astype(wide), _of_slot(self.up, slot).astype(wide)
            up = up.reshape(len(up), self.heads, -1)
            if is_transposed:
                delta = jnp.einsum("tnq,qi->tni", jnp.einsum("tno,qno->tnq", rows, up), down)
            else:
                delta = jnp.einsum("tnq,qno->tno", jnp.einsum("tni,qi->tnq", rows, down), up)
            return jnp.where((tokens.slots == slot)[:, None, None], out + delta[:count], out)

        return lax.fori_loop(0, jnp.sum(is_used, dtype=jnp.int32), add_slot, base)


def _of_slot(variable: AdapterArray, slot: jax.Array) -> jax.Array:
    """What one slot has of an array [S, ...]."""
    value: Any = variable.get_raw_value()
    return value.stack[value.layer, slot] if isinstance(value, LayerOf) else value[slot]


def _of_tokens(variable: AdapterArray, tokens: TokenSlots) -> jax.Array:
    """What the slots of the tokens have of vectors [S, 1, out]: [T, out]."""
    value: Any = variable.get_raw_value()
    own = jnp.maximum(tokens.slots, 0)
    return value.stack[value.layer, own, 0] if isinstance(value, LayerOf) else value[own, 0]


def within_layer(path: Sequence[Any]) -> tuple[Any, ...]:
    """A module's path within its layer, of a path within a model or within the layer."""
    if "layers" not in path[:-1]:
        return tuple(path)
    inner = path[path.index("layers") + 1 :]
    # The stacks of decoders have one name more, see `models.stack`.
    return tuple(inner[2:] if inner[0] in ("each", "all") else inner[1:])


def add_adapter_slots(layer: nnx.Module, shape: AdapterShape) -> nnx.Module:
    """The layer with slots at each of its linear layers and matrices of heads, or at those of `shape.modules`.

    Routed experts have them if `shape` has a rank for these.
    """
    # A list: giving a module parameters changes what is walked over.
    for path, module in list(nnx.iter_modules(layer)):
        if isinstance(module, TakesSlots):
            module.add_slots(shape)
            continue
        if shape.modules is not None and within_layer(path) not in shape.modules:
            continue
        if isinstance(module, Linear) and module.takes_adapters:
            module.adapters = nnx.data(AdapterSlots(module, shape))
        elif isinstance(module, HeadProjection):
            module.adapters = nnx.data(HeadSlots(module, shape))
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
