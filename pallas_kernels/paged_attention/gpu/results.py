"""From what the kernel writes, by unit and warpgroup, to the attention of each token."""

import functools

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.paged_attention.gpu.compute import LOG2E, MASKED
from jaxllm.pallas_kernels.paged_attention.gpu.options import ROWS
from jaxllm.pallas_kernels.paged_attention.gpu.plan import Plan
from jaxllm.pallas_kernels.ragged_batch import RaggedBatch
from jaxllm.pallas_kernels.short_rows import ShortRows

FEW_PARTS = 16
"""Up to so many are joined one by one, in one launch."""


def combine_decode(
    plan: Plan,
    batch: RaggedBatch,
    short: ShortRows,
    out: jax.Array,
    sums: jax.Array,
    sinks: jax.Array | None,
    group: int,
    splits: int,
) -> jax.Array:
    """Join the parts of each row's context.

    Letters: U units, K KV heads, G heads of a group, R rows, M tokens of a short row at most, S splits.

    Args:
        plan: of `plan_decode`.
        batch: T tokens.
        short: the rows that the plan is for.
        out: [U, K, 2, M * G or more, H].
        sums: float32 [U, K, 2, ROWS], base-2 logarithms.
        sinks: float32 [K * G] or None.
        group: G.
        splits: most units of a row.

    Returns:
        float32 [T, K * G, H]; zero for tokens that belong to no unit.
    """
    rows, heads, tokens = plan.counts.shape[0], short.most * group, batch.positions.shape[0]
    logs, parts = sums.reshape(rows, splits, *sums.shape[1:]), out.reshape(rows, splits, *out.shape[1:])
    logs, parts, counts = logs[..., :heads], parts[..., :heads, :], plan.counts
    if short.most > 1:
        logs, parts, counts = _of_tokens(logs, parts, counts, batch, short)
    used = (jnp.arange(splits, dtype=jnp.int32) < counts[:, None])[:, :, None, None, None]
    logs = jnp.where(used, logs, MASKED)
    # Empty places were never written and may hold anything, also NaN.
    parts = jnp.where(used[..., None], parts, 0)
    sink = None if sinks is None else (sinks.astype(jnp.float32) * LOG2E).reshape(-1, group)
    join = _join_few if 2 * splits <= FEW_PARTS else _join
    joined = join(logs, parts, sink).reshape(len(counts), -1, out.shape[-1])
    return jnp.pad(joined, ((0, tokens - len(counts)), (0, 0), (0, 0)))


def _of_tokens(
    logs: jax.Array, parts: jax.Array, counts: jax.Array, batch: RaggedBatch, short: ShortRows
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """What belongs to the first tokens, as many as short rows may have: [T, S, K, 2, G] and so on, from [R, ... M * G].

    A token that is in no short row has a count of 0.
    """
    rows = len(counts)
    token = jnp.arange(min(batch.positions.shape[0], rows * short.most), dtype=jnp.int32)
    row = jnp.minimum(batch.token_rows[: len(token)], rows - 1)
    place = jnp.clip(token - batch.query_start[row], 0, short.most - 1)
    each = *logs.shape[:4], short.most, logs.shape[4] // short.most
    logs, parts = logs.reshape(each), parts.reshape(*each, parts.shape[-1])
    counts = jnp.where(token < short.tokens, counts[row], 0)
    return logs[row, :, :, :, place], parts[row, :, :, :, place], counts


def _join(logs: jax.Array, parts: jax.Array, sink: jax.Array | None) -> jax.Array:
    """The sum of `parts` [R, S, K, 2, G, H], each weighing 2 to the power of `logs` [R, S, K, 2, G]: [R, K, G, H].

    `sink` [K, G], a logarithm too, only weighs. MASKED parts weigh nothing.
    """
    maximum = logs.max(axis=(1, 3))
    maximum = maximum if sink is None else jnp.maximum(maximum, sink)
    weights = jnp.where(logs == MASKED, 0.0, jnp.exp2(logs - maximum[:, None, :, None]))
    total = weights.sum(axis=(1, 3))
    total = total if sink is None else total + jnp.exp2(sink - maximum)
    weights = weights / jnp.where(total == 0.0, 1.0, total)[:, None, :, None]
    return (parts.astype(jnp.float32) * weights[..., None]).sum(axis=(1, 3))


def _join_few(logs: jax.Array, parts: jax.Array, sink: jax.Array | None) -> jax.Array:
    """As above, but as one launch: each reduction would be a launch of its own."""
    each = [(logs[:, split, :, half], parts[:, split, :, half]) for split in range(logs.shape[1]) for half in range(2)]
    maximum = functools.reduce(jnp.maximum, [log for log, _ in each])
    maximum = maximum if sink is None else jnp.maximum(maximum, sink)
    weights = [jnp.where(log == MASKED, 0.0, jnp.exp2(log - maximum)) for log, _ in each]
    total = functools.reduce(jnp.add, weights)
    total = total if sink is None else total + jnp.exp2(sink - maximum)
    weighted = [part.astype(jnp.float32) * weight[..., None] for weight, (_, part) in zip(weights, each, strict=True)]
    return functools.reduce(jnp.add, weighted) / jnp.where(total == 0.0, 1.0, total)[..., None]


def combine_prefill(
    plan: Plan,
    batch: RaggedBatch,
    short: ShortRows,
    out: jax.Array,
    sums: jax.Array,
    sinks: jax.Array | None,
    group: int,
) -> jax.Array:
    """Pick each token's attention from the units of its row.

    Arguments as in `combine_decode`; `plan` is of `plan_prefill`, and not for the rows of `short`; `out` is
    [U, K, 2, ROWS, H].

    Returns:
        float32 [T, K * G, H]; zero for tokens that belong to no unit.
    """
    units, num_kv_heads, _, _, head_size = out.shape
    each = ROWS // group
    place = jnp.arange(batch.positions.shape[0], dtype=jnp.int32) - batch.query_start[batch.token_rows]
    unit = plan.first[batch.token_rows] + jax.lax.div(place, jnp.int32(2 * each))
    within = jax.lax.rem(place, jnp.int32(2 * each))
    warpgroup, slot = jax.lax.div(within, jnp.int32(each)), jax.lax.rem(within, jnp.int32(each))
    is_prefill = (jnp.arange(place.shape[0], dtype=jnp.int32) >= short.tokens) & (
        jnp.arange(place.shape[0], dtype=jnp.int32) < batch.num_tokens
    )
    unit = jnp.clip(unit, 0, units - 1)
    rows = slot[:, None] * group + jnp.arange(group, dtype=jnp.int32)
    index = (unit[:, None, None], jnp.arange(num_kv_heads, dtype=jnp.int32)[:, None], warpgroup[:, None, None])
    picked = out[(*index, rows[:, None, :])].astype(jnp.float32)
    if sinks is not None:
        logs = sums[(*index, rows[:, None, :])] / LOG2E
        picked = picked * jax.nn.sigmoid(logs - sinks.astype(jnp.float32).reshape(num_kv_heads, group))[..., None]
    picked = picked.reshape(place.shape[0], -1, head_size)
    return jnp.where(is_prefill[:, None, None], picked, 0.0)
