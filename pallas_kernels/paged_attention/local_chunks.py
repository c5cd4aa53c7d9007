"""Chunked attention (Llama 4): a token sees the keys of its own chunk of positions, up to itself, and of no other.

A row's tokens in one chunk are a row of their own, whose pages are those of the chunk and whose positions begin at 0.
So chunked attention is plain causal attention over another batch, for every backend.
"""

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.ragged_batch import NULL_PAGE, RaggedBatch


def max_rows(tokens: int, rows: int, chunk: int) -> int:
    """Rows that `rows` with so many tokens in all can become.

    Each row with several tokens may reach into one more chunk than its tokens fill.
    """
    return max(min(tokens, rows + min(rows, tokens // 2) + tokens // chunk), 1)


def chunked_batch(batch: RaggedBatch, chunk: int, page_size: int) -> RaggedBatch:
    """`batch`, cut where a row's tokens pass from one chunk of `chunk` positions into the next.

    Tokens stay in their order, and are written to the same pages; positions count from the chunk's first. Attention
    over it must have no window. Raises `ValueError` unless chunks are whole pages.
    """
    if chunk % page_size:
        raise ValueError(f"the page size {page_size} must divide the attention chunk of {chunk} tokens")
    tokens, width = len(batch.positions), chunk // page_size
    rows = max_rows(tokens, len(batch.kv_lens), chunk)
    number, local = jax.lax.div(batch.positions, jnp.int32(chunk)), jax.lax.rem(batch.positions, jnp.int32(chunk))
    token = jnp.arange(tokens, dtype=jnp.int32)
    is_token = token < batch.num_tokens
    begins = is_token & ((token == batch.query_start[batch.token_rows]) | (local == 0))
    own = jnp.where(is_token, jnp.cumsum(begins, dtype=jnp.int32) - 1, 0)
    (start,) = jnp.nonzero(begins, size=rows + 1, fill_value=tokens)
    start = jnp.minimum(start.astype(jnp.int32), batch.num_tokens)
    count = begins.sum(dtype=jnp.int32)
    is_row = jnp.arange(rows, dtype=jnp.int32) < count
    first, last = (jnp.clip(each, 0, tokens - 1) for each in (start[:-1], start[1:] - 1))
    column = number[first, None] * width + jnp.arange(width, dtype=jnp.int32)
    pages = batch.page_table.at[batch.token_rows[first, None], column].get(mode="fill", fill_value=NULL_PAGE)
    return RaggedBatch(
        positions=jnp.where(is_token, local, 0),
        token_rows=own,
        query_start=start,
        kv_lens=jnp.where(is_row, local[last] + 1, 0),
        page_table=jnp.where(is_row[:, None], pages, NULL_PAGE),
        num_tokens=batch.num_tokens,
        num_decodes=batch.num_decodes,
        num_requests=count,
    )
