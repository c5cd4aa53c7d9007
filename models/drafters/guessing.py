"""What drafters share: the choice of a guess, and where they read what they have guessed.

Axis letters: T tokens, R rows, V vocabulary.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxllm.models.batch import Batch
from jaxllm.pallas_kernels.ragged_batch import RaggedBatch


def likeliest(logits: jax.Array) -> jax.Array:
    """The token with the greatest logit of each row, int32 [R], from [R, V]."""
    return logits.argmax(axis=1).astype(jnp.int32)


class Ahead(NamedTuple):
    """The tokens after the last one of each row that counts, as far as there are any, and where they lie."""

    ragged: RaggedBatch
    """The rows of the step, with the pages of the tokens to come."""
    starts: jax.Array
    """int32 [R], positions of the last tokens that count."""
    tokens: jax.Array
    """int32 [R, K]; the first `known` of each row are there."""
    known: jax.Array | int
    max_model_len: int
    turned: jax.Array | None = None
    """int32 [R] or [3, R]: guesses are text, which turns by its place and as much as the token before it more."""

    def batch(self, size: int = 1, back: int = 0) -> Batch:
        """The last `size` tokens of each row, the last one `back` places before the position of its own."""
        first = self.known - size
        token_ids = lax.dynamic_slice_in_dim(self.tokens, first, size, axis=1).reshape(-1)
        ragged = _last_tokens(self.ragged, self.starts + self.known - back, size, self.max_model_len)
        rotary = None if self.turned is None else ragged.positions + jnp.repeat(self.turned, size, axis=-1)
        return Batch(token_ids, ragged, rotary_positions=rotary)


def _last_tokens(ragged: RaggedBatch, lasts: jax.Array, size: int, length: int) -> RaggedBatch:
    """A batch of `size` tokens for each row of another, the last ones at the positions `lasts` (int32 [R])."""
    rows = jnp.arange(len(lasts), dtype=jnp.int32)
    is_row = rows < ragged.num_requests
    # What lies outside of a request's length is a guess that nobody will use.
    lasts = jnp.where(is_row, jnp.clip(lasts, size - 1, length - 1), 0)
    places = jnp.arange(1 - size, 1, dtype=jnp.int32)
    return RaggedBatch(
        positions=jnp.maximum(lasts[:, None] + places, 0).reshape(-1),
        token_rows=jnp.repeat(jnp.where(is_row, rows, 0), size),
        query_start=jnp.minimum(jnp.arange(len(lasts) + 1, dtype=jnp.int32), ragged.num_requests) * size,
        kv_lens=jnp.where(is_row, lasts + 1, 0),
        page_table=ragged.page_table,
        num_tokens=ragged.num_requests * size,
        num_decodes=ragged.num_requests if size == 1 else jnp.zeros_like(ragged.num_requests),
        num_requests=ragged.num_requests,
    )
