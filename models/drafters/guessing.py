"""What drafters share: the choice of a guess, and where they read what they have guessed.

Axis letters: T tokens, R rows, V vocabulary.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

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
    """int32 [R, K], of which the first `known` are there."""
    known: jax.Array | int
    max_model_len: int
    turned: jax.Array | None = None
    """int32 [R] or [3, R]: guesses are text, which turns by its place and as much as the token before it more."""

    def batch(self) -> Batch:
        """The last token of each row, at the position after the one before it."""
        token_ids = jax.lax.dynamic_index_in_dim(self.tokens, self.known - 1, axis=1, keepdims=False)
        single = _single_tokens(self.ragged, self.starts + self.known, self.max_model_len)
        rotary = None if self.turned is None else single.positions + self.turned
        return Batch(token_ids, single, rotary_positions=rotary)


def _single_tokens(ragged: RaggedBatch, positions: jax.Array, length: int) -> RaggedBatch:
    """A batch of one token for each row of another, at `positions` (int32 [R])."""
    rows = jnp.arange(len(positions), dtype=jnp.int32)
    is_row = rows < ragged.num_requests
    # What lies outside of a request's length is a guess that nobody will use.
    positions = jnp.where(is_row, jnp.minimum(positions, length - 1), 0)
    return RaggedBatch(
        positions=positions,
        token_rows=jnp.where(is_row, rows, 0),
        query_start=jnp.minimum(jnp.arange(len(positions) + 1, dtype=jnp.int32), ragged.num_requests),
        kv_lens=jnp.where(is_row, positions + 1, 0),
        page_table=ragged.page_table,
        num_tokens=ragged.num_requests,
        num_decodes=ragged.num_requests,
        num_requests=ragged.num_requests,
    )
