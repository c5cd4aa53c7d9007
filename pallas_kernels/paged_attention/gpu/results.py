"""From what the kernel writes, by unit and warpgroup, to the attention of each token."""

import functools

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.paged_attention.gpu.compute import LOG2E, MASKED
from jaxllm.pallas_kernels.paged_attention.gpu.options import ROWS
from jaxllm.pallas_kernels.paged_attention.gpu.plan import Plan
from jaxllm.pallas_kernels.ragged_batch import RaggedBatch

FEW_PARTS = 16
"""Up to so many are joined one by one, in one launch."""


def combine_decode(
    plan: Plan, out: jax.Array, sums: jax.Array, sinks: jax.Array | None, tokens: int, group: int, splits: int
) -> jax.Array:
    """Join the parts of each row's context.

    Letters: U units, K KV heads, G heads of a group, R rows, S splits.

    Args:
        plan: of `plan_decode`.
        out: [U, K, 2, G or more, H].
        sums: float32 [U, K, 2, ROWS], base-2 logarithms.
        sinks: float32 [K * G] or None.
        tokens: length of the token axis.
        group: G.
        splits: most units of a row.

    Returns:
        float32 [T, K * G, H]; zero from token R on, and for rows without units.
    """
    rows, head_size = plan.counts.shape[0], out.shape[-1]
    used = (jnp.arange(splits, dtype=jnp.int32) < plan.counts[:, None])[:, :, None, None, None]
    logs = jnp.where(used, sums.reshape(rows, splits, *sums.shape[1:])[..., :group], MASKED)
    # Empty places were never written and may hold anything, also NaN.
    parts = jnp.where(used[..., None], out.reshape(rows, splits, *out.shape[1:])[..., :group, :], 0)
    sink = None if sinks is None else (sinks.astype(jnp.float32) * LOG2E).reshape(-1, group)
    join = _join_few if 2 * splits <= FEW_PARTS else _join
    joined = join(logs, parts, sink).reshape(rows, -1, head_size)
    return jnp.pad(joined, ((0, tokens - rows), (0, 0), (0, 0)))


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
    """As above, without reductions, each of which would be a launch of its own: all is one."""
    each = [(logs[:, split, :, half], parts[:, split, :, half]) for split in range(logs.shape[1]) for half in range(2)]
    maximum = functools.reduce(jnp.maximum, [log for log, _ in each])
    maximum = maximum if sink is None else jnp.maximum(maximum, sink)
    weights = [jnp.where(log == MASKED, 0.0, jnp.exp2(log - maximum)) for log, _ in each]
    total = functools.reduce(jnp.add, weights)
    total = total if sink is None else total + jnp.exp2(sink - maximum)
    weighted = [part.astype(jnp.float32) * weight[..., None] for weight, (_, part) in zip(weights, each, strict=True)]
    return functools.reduce(jnp.add, weighted) / jnp.where(total == 0.0, 1.0, total)[..., None]


def combine_prefill(
    plan: Plan, batch: RaggedBatch, out: jax.Array, sums: jax.Array, sinks: jax.Array | None, group: int
) -> jax.Array:
    """Pick each token's attention from the units of its row.

    Arguments as in `combine_decode`; `plan` is of `plan_prefill`, `out` is [U, K, 2, ROWS, H].

    Returns:
        float32 [T, K * G, H]; zero for tokens that belong to no unit.
    """
    units, num_kv_heads, _, _, head_size = out.shape
    each = ROWS // group
    place = jnp.arange(batch.positions.shape[0], dtype=jnp.int32) - batch.query_start[batch.token_rows]
    unit = plan.first[batch.token_rows] + jax.lax.div(place, jnp.int32(2 * each))
    within = jax.lax.rem(place, jnp.int32(2 * each))
    warpgroup, slot = jax.lax.div(within, jnp.int32(each)), jax.lax.rem(within, jnp.int32(each))
    is_prefill = (jnp.arange(place.shape[0], dtype=jnp.int32) >= batch.num_decodes) & (
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
