"""Looking up numbers of a matrix without computing anything of it."""

from collections.abc import Callable

import jax
import jax.numpy as jnp


def look_up(array: jax.Array, take: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """What `take` takes of an array, which it may move and nothing else; taken as integers with the same bits.

    XLA for CPUs computes with bfloat16 in float32. It would convert the whole array for the few rows that a loop looks
    up: outside of the loop, but in every step.
    """
    if array.dtype != jnp.bfloat16:
        return take(array)
    return jax.lax.bitcast_convert_type(take(jax.lax.bitcast_convert_type(array, jnp.uint16)), array.dtype)
