"""Who computes what: units of work for the kernel, planned on the device from the batch.

A plan is made in every step, so it is written to become few small kernels: places of units follow from positions alone,
without prefix sums, and some stay empty.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.ragged_batch import RaggedBatch
from jaxllm.pallas_kernels.short_rows import ShortRows

EVERYTHING = 1 << 30
"""A window that hides nothing."""


class Plan(NamedTuple):
    """Units of work in U places."""

    units: jax.Array
    """int32 [U, 8], the fields of `compute.Unit`; an empty unit ends where it begins."""
    first: jax.Array
    """int32 [R], place of the first unit of each row; those of a row lie side by side."""
    counts: jax.Array
    """int32 [R], units of each row."""


def plan_decode(
    batch: RaggedBatch,
    window: int | jax.Array | None,
    short: ShortRows,
    *,
    tile: int,
    splits: int,
    items: int,
    num_kv_heads: int,
) -> Plan:
    """Units of the short rows: `splits` places for each row, more than one used where the context is long.

    Args:
        batch: R rows.
        window: as in `paged_attention`.
        short: which rows these are.
        tile: keys of a tile.
        splits: most units of a row.
        items: how many units times KV heads suffice to fill the machine; a row is not split beyond that.
        num_kv_heads: KV heads.
    """
    rows = min(batch.kv_lens.shape[0], batch.positions.shape[0])
    lens = jnp.where(jnp.arange(rows, dtype=jnp.int32) < short.rows, batch.kv_lens[:rows], 0)
    # How many keys the first token of a row sees: no other sees earlier ones.
    begins = batch.query_start[:rows]
    seen = lens if short.most == 1 else lens + 1 - (batch.query_start[1 : rows + 1] - begins)
    reach = _reach(window)
    start = _divide(jnp.maximum(seen - reach, 0), tile)
    end = _divide(lens + (tile - 1), tile)
    tiles = end - start
    least = _divide(tiles.sum() * num_kv_heads + (items - 1), items)
    share = jnp.maximum(jnp.maximum(least, _divide(tiles + (splits - 1), splits)), 1)
    place = jnp.arange(rows * splits, dtype=jnp.int32)
    row, split = _divide(place, splits), jax.lax.rem(place, jnp.int32(splits))
    begin = jnp.minimum(start[row] + split * share[row], end[row])
    fields = (
        row * batch.page_table.shape[1],
        row if short.most == 1 else begins[row],
        seen[row] - 1,
        begin,
        jnp.minimum(begin + share[row], end[row]),
        reach,
        short.rows * splits,
    )
    first = jnp.arange(rows, dtype=jnp.int32) * splits
    return Plan(_stack(fields), first, jax.lax.div(tiles + (share - 1), share))


def plan_prefill(
    batch: RaggedBatch, window: int | jax.Array | None, short: ShortRows, *, tile: int, tokens: int
) -> Plan:
    """Units of the rows that are not `short`: blocks of `tokens` queries with all the keys they see.

    A row's first place is the number of whole blocks of tokens before it plus the number of rows before it (short ones
    not counted), which leaves room enough for what each row rounds up.
    """
    rows = batch.kv_lens.shape[0]
    numbers = jnp.arange(rows, dtype=jnp.int32)
    is_prefill = (numbers >= short.rows) & (numbers < batch.num_requests)
    begins = batch.query_start[:-1]
    lengths = jnp.where(is_prefill, batch.query_start[1:] - begins, 0)
    first = _divide(jnp.maximum(begins - short.tokens, 0), tokens) + (numbers - short.rows)
    place = jnp.arange(batch.positions.shape[0] // tokens + rows, dtype=jnp.int32)
    row = (is_prefill & (first <= place[:, None])).sum(axis=1, dtype=jnp.int32) - 1 + short.rows
    row = jnp.clip(row, 0, rows - 1)
    ahead = (place - first[row]) * tokens
    here = jnp.clip(lengths[row] - ahead, 0, tokens)
    position = batch.kv_lens[row] - lengths[row] + ahead
    begin = _divide(jnp.maximum(position + 1 - _reach(window), 0), tile)
    seen = position + here
    if batch.visible_until is not None:
        # The later a token of a row, the further it sees.
        seen = batch.visible_until[jnp.maximum(begins[row] + ahead + here - 1, 0)]
    used = _divide(batch.num_tokens - short.tokens, tokens) + (batch.num_requests - short.rows)
    fields = (
        row * batch.page_table.shape[1],
        begins[row] + ahead,
        position,
        begin,
        jnp.where(here > 0, _divide(seen + (tile - 1), tile), begin),
        _reach(window),
        used,
    )
    return Plan(_stack(fields), first, _divide(lengths + (tokens - 1), tokens))


def _reach(window: int | jax.Array | None) -> jax.Array:
    """How many keys a query sees at most, itself included."""
    if window is None:
        return jnp.int32(EVERYTHING)
    reach = jnp.asarray(window, jnp.int32)
    return jnp.where(reach > 0, jnp.minimum(reach, EVERYTHING), EVERYTHING)


def _stack(fields: tuple[jax.Array, ...]) -> jax.Array:
    """Fields [U] or [] as [U, 8]."""
    columns = [jnp.broadcast_to(field, fields[0].shape) for field in fields]
    return jnp.stack([*columns, *[jnp.zeros_like(columns[0])] * (8 - len(columns))], axis=1)


def _divide(value: jax.Array, by: int) -> jax.Array:
    """Quotient of numbers that are never negative."""
    return jax.lax.div(value, jnp.int32(by))
