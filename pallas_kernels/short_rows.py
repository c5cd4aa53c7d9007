"""Rows of a few tokens, as decodes with drafts are: kernels may compute them as they do decodes."""

from dataclasses import dataclass, field, fields
from typing import Self

import jax
import jax.numpy as jnp
from jax import lax

from jaxllm.pallas_kernels.ragged_batch import RaggedBatch

MOST_SHORT = 8
"""Tokens of a short row at most, whatever is asked for."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ShortRows:
    """The leading rows of a batch that are short; their tokens lead, too."""

    rows: jax.Array
    """int32 []: how many there are."""
    tokens: jax.Array
    """int32 []: how many tokens they have."""
    most: int = field(metadata={"static": True})
    """Tokens of one at most. With 1, these rows are the decodes."""

    @classmethod
    def of(cls, batch: RaggedBatch, most: int) -> Self:
        """Those of a batch, of up to `most` tokens, or as many as the batch has room for."""
        most = min(most, len(batch.positions))
        if most == 1:
            return cls(batch.num_decodes, batch.num_decodes, most)
        rows = count_short(batch, most, next_seeing(batch))
        return cls(rows, batch.query_start[rows], most)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ShortBatch(RaggedBatch):
    """A batch whose short rows are known."""

    short: ShortRows


def with_short(batch: RaggedBatch, most: int) -> RaggedBatch:
    """`batch`, and which rows have up to `most` tokens, or fewer if that is more than `MOST_SHORT`."""
    if most == 1:
        return batch
    given = {field.name: getattr(batch, field.name) for field in fields(RaggedBatch)}
    return ShortBatch(**given, short=ShortRows.of(batch, min(most, MOST_SHORT)))


def short_rows(batch: RaggedBatch) -> ShortRows:
    """The short rows of a batch: its decodes, if nothing else is known."""
    return batch.short if isinstance(batch, ShortBatch) else ShortRows.of(batch, 1)


def count_short(batch: RaggedBatch, most: int, seeing: jax.Array | None) -> jax.Array:
    """How many leading rows have 1 to `most` tokens, and no token that sees a later one.

    `seeing` is what `next_seeing` gives.
    """
    lengths = batch.query_start[1:] - batch.query_start[:-1]
    is_short = (lengths > 0) & (lengths <= most)
    if seeing is not None:
        first = jnp.minimum(batch.query_start[:-1], len(seeing) - 1)
        is_short &= seeing[first] >= batch.query_start[1:]
    return jnp.sum(jnp.cumprod(is_short, dtype=jnp.int32), dtype=jnp.int32)


def next_seeing(batch: RaggedBatch) -> jax.Array | None:
    """The first token from each on that sees later ones, int32 [T]: T if there is none. None where none ever does."""
    until = batch.visible_until
    if until is None:
        return None
    token = jnp.arange(len(until), dtype=jnp.int32)
    sees = (token < batch.num_tokens) & (until > batch.positions + 1)
    return lax.cummin(jnp.where(sees, token, len(until)), reverse=True)
