"""The inputs of the state space."""

from typing import NamedTuple

import jax


class StateSpaceInputs(NamedTuple):
    """The arguments of `state_space` for a step's tokens.

    Axis letters: T tokens, N heads, H size of a head, G groups, B size of the state.
    """

    x: jax.Array
    """[T, N, H]"""
    rate: jax.Array
    """float32 [T, N] how much of `x` is written, the step size (dt)."""
    decay: jax.Array
    """float32 [T, N] logarithm of what is kept, at most 0 (dt A)."""
    write: jax.Array
    """[T, G, B], of all heads of a group (B)."""
    read: jax.Array
    """[T, G, B] (C)."""
