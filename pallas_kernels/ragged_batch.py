"""Where each token of a step sits: what attention and recurrences of every implementation read."""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp

NULL_PAGE = 0
"""Padding tokens write here; the page is never part of a request."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RaggedBatch:
    """T token places and R row places; the first `num_tokens` and `num_requests` are used.

    Rows lie one after the other on the token axis. Rows with a single token come first, so that token i of the first
    `num_decodes` is row i. All arrays are int32.
    """

    positions: jax.Array
    """[T] position of each token in its request; 0 for padding."""
    token_rows: jax.Array
    """[T] row of each token; 0 for padding."""
    query_start: jax.Array
    """[R + 1] first token of each row; `num_tokens` for padding rows."""
    kv_lens: jax.Array
    """[R] tokens of the row in the cache once this step is written; 0 for padding rows."""
    page_table: jax.Array
    """[R, W] pages of each row in order; `NULL_PAGE` where there is none."""
    num_tokens: jax.Array
    """[] tokens that are not padding."""
    num_decodes: jax.Array
    """[] leading rows with exactly one token."""
    num_requests: jax.Array
    """[] rows that are not padding."""
    visible_until: jax.Array | None = field(default=None, kw_only=True)
    """[T] the end of the positions that each token sees, where some see later ones: at most the row's `kv_lens`, and
    `positions` + 1 for tokens that see none. Leading rows with one token are of these. None: no token sees a later one.
    """


def quantise(values: jax.Array, scale: float | jax.Array | None, dtype: jnp.dtype) -> jax.Array:
    """`values` as a cache of `dtype` stores them: divided by `scale`, clipped to what it holds, never NaN or infinite.

    Pages pass from request to request, and a weight of zero on a NaN left behind by another would still be NaN.
    """
    values = jnp.where(jnp.isfinite(values), values, 0)
    if scale is not None:
        values = values.astype(jnp.float32) / scale
    if jnp.issubdtype(dtype, jnp.integer):
        limits = jnp.iinfo(dtype)
        return jnp.clip(jnp.round(values.astype(jnp.float32)), limits.min, limits.max).astype(dtype)
    if jnp.dtype(dtype).itemsize == 1:
        largest = float(jnp.finfo(dtype).max)
        values = jnp.clip(values.astype(jnp.float32), -largest, largest)
    return values.astype(dtype)


def places_of(batch: RaggedBatch, page_size: int, new: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Page and offset in it of each token [T], and `new` [T, ...], what goes there."""
    page, offset = cached_places(batch, page_size)
    if len(page) == 1:
        # XLA turns a scatter of one row into an update slice, fuses that into each of its users, and copies the whole
        # cache for it. Writing the row twice keeps it a scatter.
        page, offset, new = (jnp.repeat(each, 2, axis=0) for each in (page, offset, new))
    return page, offset, new


def cached_places(batch: RaggedBatch, page_size: int) -> tuple[jax.Array, jax.Array]:
    """Page and offset in it of each token [T]."""
    column, offset = _divide(batch.positions, page_size)
    page = batch.page_table.at[batch.token_rows, column].get(mode="promise_in_bounds")
    is_token = jnp.arange(len(page), dtype=jnp.int32) < batch.num_tokens
    return jnp.where(is_token, page, NULL_PAGE), offset


def _divide(positions: jax.Array, page_size: int) -> tuple[jax.Array, jax.Array]:
    """Quotient and remainder of positions, which are never negative (`//` and `%` would spend operations on that)."""
    size = jnp.int32(page_size)
    return jax.lax.div(positions, size), jax.lax.rem(positions, size)


def window_start(positions: jax.Array, window: int | jax.Array | None) -> jax.Array:
    """First key position each query may see. A window of None or 0 lets it see everything before it."""
    if window is None:
        return jnp.zeros_like(positions)
    window = jnp.asarray(window, jnp.int32)
    return jnp.where(window > 0, jnp.maximum(positions - window + 1, 0), 0)
