"""Where the texts of a batch lie on one token axis."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Segments:
    """T token places and R row places; the first `num_tokens` and `num_rows` are used. All arrays are int32.

    Texts lie one after the other, each whole.
    """

    starts: jax.Array
    """[R + 1] first token of each text; `num_tokens` after the last one."""
    rows: jax.Array
    """[T] the text of each token; 0 for padding."""
    num_tokens: jax.Array
    """[] tokens that are not padding."""
    num_rows: jax.Array
    """[] texts."""

    @property
    def lengths(self) -> jax.Array:
        """Tokens of each text, [R]; 0 for padding."""
        return self.starts[1:] - self.starts[:-1]

    @property
    def positions(self) -> jax.Array:
        """Position of each token in its text, [T]; 0 for padding."""
        place = jnp.arange(self.rows.shape[0], dtype=jnp.int32)
        return jnp.where(place < self.num_tokens, place - self.starts[self.rows], 0)
