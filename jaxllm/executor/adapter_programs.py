"""Programs that make and fill the slots of adapters.

Axis letters: L layers, S slots, Q the rank of every slot, P parts of a merged matrix.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxllm.executor.compile.program_context import ProgramBody, ProgramContext
from jaxllm.models.layers.adapter_factors import row_squares, set_factors
from jaxllm.models.layers.adapter_slots import AdaptedGraph


def has_adapters(context: ProgramContext[Any]) -> bool:
    """Whether an engine has slots for adapters."""
    return context.shape.adapters is not None


def empty_adapters_body(context: ProgramContext[Any]) -> ProgramBody:
    """Makes the slots, all zeros."""
    return ProgramBody(lambda: empty_adapters(context.adapters))


def has_vectors(context: ProgramContext[Any]) -> bool:
    """Whether these slots have vectors for outputs."""
    return context.shape.adapters is not None and context.shape.adapters.has_vectors


def row_squares_body(context: ProgramContext[Any]) -> ProgramBody:
    """Measures the rows of the matrices that adapters may have magnitudes for."""
    adapted, dtype = _adapted(context), context.handover.dtype
    return ProgramBody(lambda parameters, adapters: row_squares(adapted.merge(parameters, adapters), dtype))


def scale_adapter_body(context: ProgramContext[Any]) -> ProgramBody:
    """Makes factors of the magnitudes in a slot: int32 []."""
    adapted, dtype = _adapted(context), context.handover.dtype

    def scale(parameters: Any, squares: Any, adapters: Any, slot: jax.Array) -> tuple[jax.Array, ...]:
        return set_factors(adapted, parameters, adapters, squares, slot, dtype)

    return ProgramBody(scale, (context.host(),))


def _adapted(context: ProgramContext[Any]) -> AdaptedGraph:
    assert context.adapted is not None
    return context.adapted


def set_adapter_body(context: ProgramContext[Any]) -> ProgramBody:
    """Replaces what is in a slot: int32 [], then an array for each of the slots' arrays, with one slot."""
    return ProgramBody(set_adapter, (context.host(), *map(one_slot, context.adapters)))


def empty_adapters(adapters: Sequence[jax.ShapeDtypeStruct]) -> tuple[jax.Array, ...]:
    """Zeros of these shapes."""
    return tuple(jnp.zeros(leaf.shape, leaf.dtype) for leaf in adapters)


def one_slot(array: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    """What one slot has of an array [..., S, rows, columns]."""
    *stack, _, rows, columns = array.shape
    return jax.ShapeDtypeStruct((*stack, 1, rows, columns), array.dtype, sharding=array.sharding)


def set_adapter(adapters: tuple[jax.Array, ...], slot: jax.Array, *values: jax.Array) -> tuple[jax.Array, ...]:
    """The slots' arrays with `values`, one for each, in `slot`."""
    return tuple(
        lax.dynamic_update_slice_in_dim(array, value, slot, axis=array.ndim - 3)
        for array, value in zip(adapters, values, strict=True)
    )
