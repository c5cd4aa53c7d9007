"""The values of a batch that TPU kernels share in every layer."""

from dataclasses import dataclass, field, fields

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.ragged_batch import RaggedBatch
from jaxllm.pallas_kernels.short_rows import count_short, next_seeing


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TpuBatch(RaggedBatch):
    """A batch with what the kernels read alongside it."""

    table: jax.Array
    """int32 [R, 1, W]: the page table as rows that a DMA can fetch one by one."""
    order: jax.Array
    """int32 [R]: the rows with tokens that are not short, first."""
    counts: jax.Array
    """int32 [2]: short rows, which come first, and other rows with tokens."""
    most_short: int = field(metadata={"static": True})
    """Tokens of a short row at most. With 1, these are the decodes."""
    next_seeing: jax.Array | None = field(default=None, kw_only=True)
    """int32 [T], or None: what the function of that name gives."""


def tpu_prepare(batch: RaggedBatch, most_short: int = 1) -> TpuBatch:
    """`batch` with what is the same in every layer; one that has it already is returned as it is.

    The rows before the first with more than `most_short` tokens are short: decodes, and those of a few tokens.
    """
    if isinstance(batch, TpuBatch):
        return batch
    seeing = next_seeing(batch)
    short = count_short(batch, most_short, seeing) if most_short > 1 else batch.num_decodes
    order, others = _others(batch, short)
    given = {field.name: getattr(batch, field.name) for field in fields(batch)}
    counts = jnp.stack([short, others])
    table = batch.page_table[:, None]
    return TpuBatch(**given, table=table, order=order, counts=counts, most_short=most_short, next_seeing=seeing)


def _others(batch: RaggedBatch, short: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The rows with tokens after the first `short` ones, first in an array [R], and their number."""
    rows = jnp.arange(batch.kv_lens.shape[0], dtype=jnp.int32)
    lengths = batch.query_start[1:] - batch.query_start[:-1]
    chosen = (rows >= short) & (rows < batch.num_requests) & (lengths > 0)
    # Comparisons of all with all: for so few numbers XLA is faster at them than at sums of prefixes and scatters.
    rank = jnp.sum(chosen & (rows < rows[:, None]), axis=1, dtype=jnp.int32)
    order = jnp.sum(jnp.where(chosen & (rank == rows[:, None]), rows, 0), axis=1, dtype=jnp.int32)
    return order, chosen.sum(dtype=jnp.int32)
