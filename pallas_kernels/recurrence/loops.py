"""Shared by the loops over a step's rows: what they carry, and how a state is read as a whole before it is written."""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax

Inputs = Any
"""A pytree of arrays with a token axis in front."""


class Recurrence(Protocol):
    """A recurrence over tokens: `inputs` are a pytree, a state is an array."""

    def step(self, inputs: Inputs, states: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Outputs [B, ...] and states [B, ...] of B rows, each with one token, from inputs [B, ...]."""
        ...

    def chunk(self, inputs: Inputs, state: jax.Array, length: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Outputs [C, ...] and the state of one row with C tokens; the first `length` (int32 []) count."""
        ...

    def kept(self, inputs: Inputs) -> tuple[jax.Array, ...]:
        """Those of the inputs [B, ...] that change a state, in the shapes that `LayerStates.inputs` have."""
        ...

    def restored(self, kept: tuple[jax.Array, ...]) -> Inputs:
        """Inputs [B, ...] from which `step` makes the same state as from those that were `kept`, and any output."""
        ...


class Carry(NamedTuple):
    """Outputs [T + spare, ...] so far, and the arrays of `LayerStates`."""

    out: jax.Array
    states: jax.Array
    inputs: tuple[jax.Array, ...]


def apart(
    function: Callable[..., tuple[jax.Array, jax.Array]], *operands: Any, is_any: jax.Array, platform: str
) -> tuple[jax.Array, jax.Array]:
    """The result of a function for a state, read before and written after it as a whole.

    Otherwise XLA reads the state's slot wherever it is used, which may be after the write: it copies all slots then.
    Compilers for CPUs drop optimization barriers before they fuse, but fuse nothing into a conditional. `is_any` is
    true, which they do not know.
    """
    if platform != "cpu":
        return lax.optimization_barrier(function(*lax.optimization_barrier(operands)))
    made = jax.eval_shape(function, *operands)
    nothing = jax.tree.map(lambda each: jnp.zeros(each.shape, each.dtype), made)
    result: tuple[jax.Array, jax.Array] = lax.cond(is_any, function, lambda *_: nothing, *operands)
    return result


def ceil(number: jax.Array, size: int) -> jax.Array:
    """How many times `size` holds `number`, rounded up."""
    return (number + (size - 1)) // size


def padded(array: jax.Array, spare: int, value: Any) -> jax.Array:
    """An array with `spare` more elements of that value along the first axis."""
    return jnp.pad(array, ((0, spare), *((0, 0),) * (array.ndim - 1)), constant_values=value)


def tokens_at(inputs: Inputs, first: jax.Array, size: int) -> Inputs:
    """The inputs of `size` tokens from `first` on."""
    return jax.tree.map(lambda array: lax.dynamic_slice_in_dim(array, first, size), inputs)


def put(out: jax.Array, made: jax.Array, first: jax.Array) -> jax.Array:
    """The outputs with those that were `made`, from token `first` on."""
    return lax.dynamic_update_slice_in_dim(out, made.astype(out.dtype), first, axis=0)
