"""Factors of adapters with magnitudes (DoRA, arXiv 2402.09353): an output of a layer with the adapter, W x + B A x, is
multiplied by its magnitude over the length of its row of W + B A.

The rows are those that the layer multiplies with, also where it has them in few bits: they are learned from products
with it, so that no layout of weights has to be unpacked.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax
from jax.typing import DTypeLike

from jaxllm.models.forward_context import ALL_ROWS
from jaxllm.models.layers.adapter_slots import AdaptedGraph, AdapterArray, AdapterSlots
from jaxllm.models.layers.linear import Linear
from jaxllm.models.layers.parameter import placeholder
from jaxllm.models.sharding import sharding

COLUMNS = 64
"""Of a matrix, that are read at a time."""


def square_shapes(model: nnx.Module) -> tuple[jax.Array, ...]:
    """Shapes of what `row_squares` returns for a model with slots."""
    found = []
    for _, linear in _adapted(model):
        scale = _arrays(linear)["scale"]
        stack = scale.shape[:-3]
        place = sharding(linear.mesh, *(None for _ in stack), linear.axes[0])
        found.append(placeholder((*stack, scale.shape[-1]), jnp.dtype(jnp.float32), place))
    return tuple(found)


def row_squares(model: nnx.Module, dtype: DTypeLike) -> tuple[jax.Array, ...]:
    """The squared length of each row of every layer with slots, float32 [(L,) out]. `dtype` is the activations'."""

    def of_layer(linear: Linear) -> jax.Array:
        out_size, in_size = linear.layout.shape
        numbers = jnp.arange(in_size, dtype=jnp.int32)

        def add_columns(index: jax.Array, total: jax.Array) -> jax.Array:
            columns = index * COLUMNS + jnp.arange(COLUMNS, dtype=jnp.int32)
            rows = (columns[:, None] == numbers).astype(dtype)
            out = linear.product(rows, ALL_ROWS, out_dtype=jnp.float32)
            return total + jnp.sum(out * out, axis=0)

        return lax.fori_loop(0, -(-in_size // COLUMNS), add_columns, jnp.zeros(out_size, jnp.float32))

    return tuple(_by_layer(linear, of_layer) for _, linear in _adapted(model))


def set_factors(
    adapted: AdaptedGraph,
    parameters: Any,
    adapters: Sequence[jax.Array],
    squares: Sequence[jax.Array],
    slot: jax.Array,
    dtype: DTypeLike,
) -> tuple[jax.Array, ...]:
    """The slots' arrays with factors in the place of the magnitudes in `slot`, 1 where these are not a number.

    `squares` are those of `row_squares`.
    """
    model = adapted.merge(parameters, adapters)
    split: Any = nnx.split(model, AdapterArray, ...)
    arrays = {path: each.get_raw_value() for path, each in nnx.to_flat_state(split[1])}
    for (path, linear), own in zip(_adapted(model), squares, strict=True):
        slots: Any = linear.adapters

        def of_layer(linear: Linear, *of_slot: jax.Array, slots: AdapterSlots = slots) -> jax.Array:
            return _factors(linear, slots, *of_slot, dtype=dtype)

        down, up, scale = (_arrays(linear)[name] for name in ("down", "up", "scale"))
        of_slot = [lax.dynamic_index_in_dim(each, slot, each.ndim - 3, keepdims=False) for each in (down, up, scale)]
        found = _by_layer(linear, of_layer, *of_slot, own)[..., None, None, :]
        place = (*path, "adapters", "scale")
        arrays[place] = lax.dynamic_update_slice_in_dim(scale, found, slot, axis=scale.ndim - 3)
    return tuple(arrays.values())


def _factors(
    linear: Linear,
    slots: AdapterSlots,
    down: jax.Array,
    up: jax.Array,
    magnitudes: jax.Array,
    squares: jax.Array,
    *,
    dtype: DTypeLike,
) -> jax.Array:
    """Of one layer, [out]: |W + B A|^2 = |W|^2 + 2 (W A^T) B + B (A A^T) B, row by row."""
    rank, outputs, wide = len(up), slots.outputs, jnp.float32
    product = linear.product(down.astype(dtype), ALL_ROWS, out_dtype=wide)
    b = up.astype(wide).reshape(rank, outputs.blocks, -1)
    added, first = [], 0
    for part, size in enumerate(outputs.sizes):
        rows, columns = slice(part * rank, (part + 1) * rank), slice(first, first + size)
        a, own = down[rows].astype(wide), b[..., columns]
        of_weight = product[rows].reshape(rank, outputs.blocks, -1)[..., columns]
        gram = jnp.einsum("qi,ki->qk", a, a, precision="highest")
        of_product = jnp.einsum("qk,kbo->qbo", gram, own, precision="highest")
        added.append(jnp.sum(own * (2 * of_weight + of_product), axis=0))
        first += size
    total = squares + jnp.concatenate(added, axis=-1).reshape(-1)
    length, magnitudes = jnp.sqrt(jnp.maximum(total, 0)), magnitudes.reshape(-1)
    factors = jnp.where(length > 0, magnitudes / jnp.where(length > 0, length, 1), 0)
    return jnp.where(jnp.isnan(magnitudes), 1, factors)


def _adapted(model: nnx.Module) -> Iterator[tuple[tuple[Any, ...], Linear]]:
    """The layers with slots, and their paths."""
    for path, module in nnx.iter_modules(model):
        if isinstance(module, Linear) and module.adapters is not None:
            yield tuple(path), module


def _arrays(linear: Linear) -> dict[str, Any]:
    names = ("down", "up", "scale")
    return {name: getattr(linear.adapters, name).get_raw_value() for name in names}


def _by_layer(linear: Linear, function: Callable[..., jax.Array], *arrays: jax.Array) -> jax.Array:
    """A function of a layer and of what there is for it, of each of a stack [L, ...] if it is one."""
    if _arrays(linear)["scale"].ndim == 3:
        return function(linear, *arrays)
    split: Any = nnx.split(linear, AdapterArray, ...)
    graph, adapters, parameters = split

    def of_one(one: Any) -> jax.Array:
        own, *others = one
        return function(nnx.merge(graph, adapters, own), *others)

    return lax.map(of_one, (parameters, *arrays))
