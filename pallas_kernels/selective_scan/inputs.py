"""The inputs of the selective scan."""

from typing import NamedTuple

import jax


class SelectiveScanInputs(NamedTuple):
    """The arguments of `selective_scan` for a step's tokens.

    Axis letters: T tokens, D channels, B size of the state.
    """

    x: jax.Array
    """[T, D]"""
    rate: jax.Array
    """float32 [T, D] the step size (dt)."""
    write: jax.Array
    """[T, B] (B)."""
    read: jax.Array
    """[T, B] (C)."""
    log_decay: jax.Array
    """float32 [D, B], at most 0 (A): the same for all tokens."""
