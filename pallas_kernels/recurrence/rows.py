"""Where the states of a step's rows lie."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

OUT_OF_RANGE = 2**31 - 1
"""A slot that no array has: what is written there is dropped."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class DraftRows:
    """The drafts of a step's rows: guesses at the tokens after the last known one, which may turn out to be wrong.

    A row's state is kept after its last known token, and the inputs of its drafts with it. The row's next step says how
    many of them were right, and begins with these.
    """

    num_replayed: jax.Array
    """int32 [R], how many drafts of the row's last step are part of it."""
    num_drafts: jax.Array
    """int32 [R], how many tokens of the row in this step are drafts, the last ones."""
    touched: jax.Array
    """int32 [R], the numbers of rows with one or the other, then those of others."""
    num_touched: jax.Array
    """int32 []"""

    @staticmethod
    def of(num_replayed: jax.Array, num_drafts: jax.Array) -> "DraftRows":
        """The drafts of rows, from the numbers of old and new ones, int32 [R]."""
        is_touched = (num_replayed > 0) | (num_drafts > 0)
        touched = jnp.argsort(~is_touched, stable=True).astype(jnp.int32)
        return DraftRows(num_replayed, num_drafts, touched, jnp.sum(is_touched, dtype=jnp.int32))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StateRows:
    """Where the states of a step's rows lie in arrays [L, slots, ...]."""

    slots: jax.Array
    """int32 [R], `OUT_OF_RANGE` for padding."""
    begins: jax.Array
    """bool [R], whether nothing of the row was computed before: its state is zero, whatever the slot holds."""
    drafts: DraftRows | None = None
    """None where rows never have drafts."""

    def read(self, states: jax.Array, layer: int | jax.Array) -> jax.Array:
        """The states [R, ...] before this step."""
        own = states.at[layer, self.slots].get(mode="fill", fill_value=0)
        return jnp.where(self.begins.reshape(-1, *(1,) * (own.ndim - 1)), 0, own)

    def write(self, states: jax.Array, layer: int | jax.Array, new: jax.Array) -> jax.Array:
        """The arrays with `new` states [R, ...]."""
        return states.at[layer, self.slots].set(new.astype(states.dtype), mode="drop")
