"""Who computes what: units of work for the kernel, planned on the device from the batch."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.paged_attention.ragged import RaggedBatch

EVERYTHING = 1 << 30
"""A window that hides nothing."""

UNIT_FIELDS = 8
"""Numbers of a unit: the fields of `compute.Unit`, and padding."""


class Plan(NamedTuple):
    """Units of work, U places of which the first `total` are used."""

    units: jax.Array
    """int32 [U, 8]: first entry of the page table, first token, its position, first tile, end of the tiles, window."""
    total: jax.Array
    """int32 []."""
    first: jax.Array
    """int32 [R], first unit of each row; the units of a row lie side by side."""
    counts: jax.Array
    """int32 [R], units of each row."""


def plan_decode(
    batch: RaggedBatch, window: int | jax.Array | None, *, tile: int, splits: int, items: int, num_kv_heads: int
) -> Plan:
    """Units of the rows with one token. A long context is split over several units.

    Args:
        batch: R rows.
        window: as in `paged_attention`.
        tile: keys of a tile.
        splits: most units of a row.
        items: how many units times KV heads suffice to fill the machine; a row is not split beyond that.
        num_kv_heads: KV heads.
    """
    rows = min(batch.kv_lens.shape[0], batch.positions.shape[0])
    lens = jnp.where(jnp.arange(rows, dtype=jnp.int32) < batch.num_decodes, batch.kv_lens[:rows], 0)
    reach = _reach(window)
    start = _divide(jnp.maximum(lens - reach, 0), tile)
    end = _divide(lens + (tile - 1), tile)
    tiles = jnp.maximum(end - start, 0)
    share = _divide(tiles.sum() * num_kv_heads + (items - 1), items)
    share = jnp.maximum(jnp.maximum(share, _divide(tiles + (splits - 1), splits)), 1)
    counts = jax.lax.div(tiles + (share - 1), share)
    row, index, first, total = _ragged(counts, min(rows * splits, rows + -(-items // num_kv_heads)))
    begin = start[row] + index * share[row]
    fields = (
        row * batch.page_table.shape[1],
        row,
        lens[row] - 1,
        begin,
        jnp.minimum(begin + share[row], end[row]),
        jnp.broadcast_to(reach, row.shape),
    )
    return Plan(_stack(fields), total, first, counts)


def plan_prefill(batch: RaggedBatch, window: int | jax.Array | None, *, tile: int, tokens: int) -> Plan:
    """Units of the rows with several tokens: blocks of `tokens` queries with all the keys they see."""
    rows = batch.kv_lens.shape[0]
    numbers = jnp.arange(rows, dtype=jnp.int32)
    lengths = batch.query_start[1:] - batch.query_start[:-1]
    lengths = jnp.where((numbers >= batch.num_decodes) & (numbers < batch.num_requests), lengths, 0)
    counts = _divide(lengths + (tokens - 1), tokens)
    row, index, first, total = _ragged(counts, batch.positions.shape[0] // tokens + rows)
    reach = _reach(window)
    ahead = index * tokens
    position = batch.kv_lens[row] - lengths[row] + ahead
    behind = position + jnp.minimum(lengths[row] - ahead, tokens)
    fields = (
        row * batch.page_table.shape[1],
        batch.query_start[row] + ahead,
        position,
        _divide(jnp.maximum(position + 1 - reach, 0), tile),
        _divide(behind + (tile - 1), tile),
        jnp.broadcast_to(reach, row.shape),
    )
    return Plan(_stack(fields), total, first, counts)


def _ragged(counts: jax.Array, places: int) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Row and number in its row of each of `places` units, the first unit of each row, and how many there are."""
    # A comparison of all with all is one small kernel; a scan and a search would be several.
    rows = counts.shape[0]
    before = jnp.tri(rows, rows, -1, dtype=jnp.int32)
    first = (before * counts).sum(axis=1)
    unit = jnp.arange(places, dtype=jnp.int32)
    row = jnp.minimum((unit[:, None] >= (first + counts)).sum(axis=1, dtype=jnp.int32), rows - 1)
    return row, unit - first[row], first, counts.sum()


def _reach(window: int | jax.Array | None) -> jax.Array:
    """How many keys a query sees at most, itself included."""
    if window is None:
        return jnp.int32(EVERYTHING)
    reach = jnp.asarray(window, jnp.int32)
    return jnp.where(reach > 0, jnp.minimum(reach, EVERYTHING), EVERYTHING)


def _stack(fields: tuple[jax.Array, ...]) -> jax.Array:
    """Fields [U] as [U, 8]."""
    padding = [jnp.zeros_like(fields[0])] * (UNIT_FIELDS - len(fields))
    return jnp.stack([*fields, *padding], axis=1)


def _divide(value: jax.Array, by: int) -> jax.Array:
    """Quotient of numbers that are never negative."""
    return jax.lax.div(value, jnp.int32(by))
