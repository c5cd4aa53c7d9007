"""Programs that make and fill the slots of adapters.

Axis letters: L layers, S slots, Q the rank of every slot, P parts of a merged matrix.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxllm.executor.compile.program_context import ProgramBody, ProgramContext


def has_adapters(context: ProgramContext[Any]) -> bool:
    """Whether an engine has slots for adapters."""
    return context.shape.adapters is not None


def empty_adapters_body(context: ProgramContext[Any]) -> ProgramBody:
    """Makes the slots, all zeros."""
    return ProgramBody(lambda: empty_adapters(context.adapters))


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
