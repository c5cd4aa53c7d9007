"""Attention of every row of a batch in plain XLA operations: decodes, rows of a few tokens, and chunks of prompts."""

from collections.abc import Callable

import jax
from jax import lax

from jaxllm.pallas_kernels.ragged_batch import RaggedBatch
from jaxllm.pallas_kernels.short_rows import short_rows
from jaxllm.pallas_kernels.xla_common.blockwise import Blocks, Pages, decode_by_blocks, prefill_by_blocks
from jaxllm.pallas_kernels.xla_common.short_blocks import short_by_blocks
from jaxllm.pallas_kernels.xla_common.softmax import Heads


def attend_by_blocks(
    q: jax.Array, pages: Pages, batch: RaggedBatch, starts: jax.Array, heads: Heads, blocks: Blocks
) -> jax.Array:
    """Every token's attention, [T, N, V] in the type of `q` [T, N, H]; `starts` [T] is the first key each may see."""
    out, short = decode_by_blocks(q, pages, batch, starts, heads, blocks), short_rows(batch)
    if short.most > 1:
        out = short_by_blocks(q, out, pages, batch, short, starts, heads, blocks)
    return out if q.shape[0] == 1 else prefill_by_blocks(q, out, pages, batch, short.rows, starts, heads, blocks)


def attend_by_platform(
    q: jax.Array, pages: Pages, batch: RaggedBatch, starts: jax.Array, heads: Heads, *, small: Blocks, large: Blocks
) -> jax.Array:
    """`attend_by_blocks`, in large blocks on GPUs."""

    def attend(blocks: Blocks) -> Callable[[jax.Array], jax.Array]:
        return lambda q: attend_by_blocks(q, pages, batch, starts, heads, blocks)

    gpu = attend(large)
    attended: jax.Array = lax.platform_dependent(q, cuda=gpu, rocm=gpu, default=attend(small))
    return attended
