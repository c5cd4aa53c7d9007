"""Where the states of a step's rows lie."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

OUT_OF_RANGE = 2**31 - 1
"""A slot that no array has: what is written there is dropped."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StateRows:
    """Where the states of a step's rows lie in arrays [L, slots, ...]."""

    slots: jax.Array
    """int32 [R], `OUT_OF_RANGE` for padding."""
    begins: jax.Array
    """bool [R], whether nothing of the row was computed before: its state is zero, whatever the slot holds."""

    def read(self, states: jax.Array, layer: int | jax.Array) -> jax.Array:
        """The states [R, ...] before this step."""
        own = states.at[layer, self.slots].get(mode="fill", fill_value=0)
        return jnp.where(self.begins.reshape(-1, *(1,) * (own.ndim - 1)), 0, own)

    def write(self, states: jax.Array, layer: int | jax.Array, new: jax.Array) -> jax.Array:
        """The arrays with `new` states [R, ...]."""
        return states.at[layer, self.slots].set(new.astype(states.dtype), mode="drop")
