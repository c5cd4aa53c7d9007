"""The inputs of the linear recurrence."""

from typing import NamedTuple

import jax


class LinearRecurrenceInputs(NamedTuple):
    """The arguments of `linear_recurrence` for a step's tokens.

    Axis letters: T tokens, D channels.
    """

    decay: jax.Array
    """float32 [T, D] which part of the state is kept, from 0 to 1."""
    written: jax.Array
    """float32 [T, D]"""
