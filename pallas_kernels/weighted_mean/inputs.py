"""The inputs of the weighted mean."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

NOTHING = -1e38
"""The largest exponent of no tokens. Its exponential is zero, and so is that of anything less."""


class WeightedMeanInputs(NamedTuple):
    """The arguments of `weighted_mean` for a step's tokens.

    Axis letters: T tokens, D channels.
    """

    key: jax.Array
    """float32 [T, D] logarithm of the token's weight."""
    value: jax.Array
    """float32 [T, D]"""
    log_decay: jax.Array
    """float32 [D], at most 0: what is added to logarithms with every token."""
    bonus: jax.Array
    """float32 [D], what is added to that of the token itself, for its own output."""


def mean_of(state: jax.Array, key: jax.Array, value: jax.Array, bonus: jax.Array) -> jax.Array:
    """The mean [..., D] over tokens before, `state` [..., 3, D], and the token itself."""
    total, weight, largest = _parts(state)
    top = jnp.maximum(largest, key + bonus)
    old, new = jnp.exp(largest - top), jnp.exp(key + bonus - top)
    return (old * total + new * value) / (old * weight + new)


def state_after(state: jax.Array, key: jax.Array, value: jax.Array, decay: jax.Array) -> jax.Array:
    """The state [..., 3, D] with the token."""
    total, weight, largest = _parts(state)
    top = jnp.maximum(largest + decay, key)
    old, new = jnp.exp(largest + decay - top), jnp.exp(key - top)
    return jnp.stack([old * total + new * value, old * weight + new, top], axis=-2)


def _parts(state: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Sum of values, sum of weights, and largest exponent; a state of zeros is that of no tokens."""
    total, weight, largest = (state[..., part, :] for part in range(3))
    return total, weight, jnp.where(weight == 0, NOTHING, largest)
