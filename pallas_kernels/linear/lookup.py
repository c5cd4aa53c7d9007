"""Looking up numbers of a matrix without computing anything of it."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax


def look_up(array: jax.Array, take: Callable[[jax.Array], jax.Array]) -> jax.Array:
    """What `take` takes of an array, which it may move and nothing else.

    XLA for CPUs computes with bfloat16 in float32. It would convert the whole array for the few rows that a loop looks
    up: outside of the loop, but in every step. So there they are taken as integers with the same bits. (XLA for TPUs
    would copy the array for that.)
    """
    if array.dtype != jnp.bfloat16:
        return take(array)

    def take_bits(array: jax.Array) -> jax.Array:
        return lax.bitcast_convert_type(take(lax.bitcast_convert_type(array, jnp.uint16)), array.dtype)

    found: jax.Array = lax.platform_dependent(array, cpu=take_bits, default=take)
    return found
