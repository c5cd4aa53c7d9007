"""The inputs of the selective scan."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


def of_channels(values: jax.Array, channels: int) -> jax.Array:
    """B or C of one token for its channels: [B, 1] of [B], or [B, D] of [N, B]."""
    if values.ndim == 1:
        return values[:, None]
    return jnp.repeat(values.T, channels // len(values), axis=1)


class SelectiveScanInputs(NamedTuple):
    """The arguments of `selective_scan` for a step's tokens.

    Axis letters: T tokens, D channels, B size of the state, N heads, each with its part of the channels.
    """

    x: jax.Array
    """[T, D]"""
    rate: jax.Array
    """float32 [T, D] the step size (dt)."""
    write: jax.Array
    """[T, B] (B); or [T, N, B], for the channels of each head."""
    read: jax.Array
    """[T, B] (C), or [T, N, B]."""
    log_decay: jax.Array
    """float32 [D, B], at most 0 (A): the same for all tokens."""
