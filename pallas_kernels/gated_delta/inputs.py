"""The inputs of the gated delta rule."""

from typing import NamedTuple

import jax
import jax.numpy as jnp


class GatedDeltaInputs(NamedTuple):
    """The arguments of `gated_delta` for a step's tokens.

    Axis letters: T tokens, K key heads, V value heads, H size of keys, E of values.
    """

    query: jax.Array
    """[T, K, H], scaled as the model has it. Value head v has query and key head v // (V / K)."""
    key: jax.Array
    """[T, K, H]"""
    value: jax.Array
    """[T, V, E]"""
    decay: jax.Array
    """float32 [T, V] logarithm of what is kept, at most 0; or [T, V, H], for each element of a key."""
    rate: jax.Array
    """float32 [T, V] how much of the difference is corrected (beta)."""

    def repeat_for_value_heads(self) -> "GatedDeltaInputs":
        """A copy with queries and keys for every value head, all in float32."""
        times = self.value.shape[1] // self.key.shape[1]
        query, key = (jnp.repeat(each, times, axis=1).astype(jnp.float32) for each in (self.query, self.key))
        return GatedDeltaInputs(query, key, self.value.astype(jnp.float32), self.decay, self.rate)
