"""The delta rule where each element of a key has a decay of its own (arXiv 2510.26692), in plain XLA operations.

As in `xla.py` a chunk of tokens is a system of linear equations. Its products of keys have decays inside, exp(a - b)
for each element, where a and b may be large: they are split at the beginnings of blocks of tokens, so that no exponent
is positive, and only products within a block are made element by element.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from jaxllm.pallas_kernels.gated_delta.inputs import GatedDeltaInputs
from jaxllm.pallas_kernels.gated_delta.inverse import solve

BLOCK = 16
"""Tokens whose products are made element by element."""

_einsum = partial(jnp.einsum, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32)


def step_by_channel(inputs: GatedDeltaInputs, states: jax.Array) -> tuple[jax.Array, jax.Array]:
    """See `Recurrence.step`."""
    query, key, value, decay, rate = inputs.repeat_for_value_heads()
    kept = jnp.exp(decay)
    # The state is read once for both, and once more to be written.
    seen = _einsum("bvxh,bvhe->bvxe", jnp.stack([key * kept, query * kept], axis=2), states)
    change = (value - seen[:, :, 0]) * rate[:, :, None]
    out = seen[:, :, 1] + (query * key).sum(axis=-1, keepdims=True) * change
    return out, states * kept[..., None] + key[..., None] * change[:, :, None]


def chunk_by_channel(inputs: GatedDeltaInputs, state: jax.Array, length: jax.Array) -> tuple[jax.Array, jax.Array]:
    """See `Recurrence.chunk`."""
    query, key, value, decay, rate = (jnp.moveaxis(each, 1, 0) for each in inputs.repeat_for_value_heads())
    is_token = (jnp.arange(key.shape[1], dtype=jnp.int32) < length)[:, None]
    # Without decay and with a rate of zero a token changes nothing.
    total = jnp.cumsum(jnp.where(is_token, decay, 0.0), axis=1)
    rate = jnp.where(is_token, rate[:, :, None], 0.0)
    since_start = jnp.exp(total)
    before = _einsum("vih,vhe->vie", key * since_start, state)
    change = solve(_decayed_products(key * rate, key, total), (value - before) * rate)
    scores = _decayed_products(query, key, total)
    out = _einsum("vih,vhe->vie", query * since_start, state) + _einsum("vij,vje->vie", scores, change)
    to_end = jnp.exp(total[:, -1:] - total)
    state = state * since_start[:, -1, :, None] + _einsum("vih,vie->vhe", key * to_end, change)
    return jnp.moveaxis(out, 0, 1), state


def _decayed_products(first: jax.Array, second: jax.Array, total: jax.Array) -> jax.Array:
    """For tokens j up to i the sum over h of first[i, h] second[j, h] exp(total[i, h] - total[j, h]): [V, C, C].

    `total`, like the others [V, C, H], does not grow with the token.
    """
    heads, tokens, size = first.shape
    missing = -tokens % BLOCK
    first, second = (jnp.pad(each, ((0, 0), (0, missing), (0, 0))) for each in (first, second))
    total = jnp.pad(total, ((0, 0), (0, missing), (0, 0)), mode="edge")
    count = (tokens + missing) // BLOCK
    blocks = (heads, count, BLOCK, size)
    own, other, sums = first.reshape(blocks), second.reshape(blocks), total.reshape(blocks)
    start = sums[:, :, :1]
    # Tokens of earlier blocks: down to the beginning of the block, and from there on.
    is_earlier = jnp.arange(count * BLOCK, dtype=jnp.int32) < jnp.arange(count, dtype=jnp.int32)[:, None] * BLOCK
    since = jnp.where(is_earlier[:, :, None], start - total[:, None], -jnp.inf)
    across = _einsum("vaih,vajh->vaij", own * jnp.exp(sums - start), second[:, None] * jnp.exp(since))
    place = jnp.arange(BLOCK, dtype=jnp.int32)
    is_seen = (place[:, None] >= place)[:, :, None]
    between = jnp.exp(jnp.where(is_seen, sums[:, :, :, None] - sums[:, :, None], -jnp.inf))
    within = (own[:, :, :, None] * other[:, :, None] * between).sum(axis=-1)
    number = jnp.arange(count, dtype=jnp.int32)
    whole = across.reshape(heads, count, BLOCK, count, BLOCK)
    # Separate advanced indices come first.
    whole = whole.at[:, number, :, number].add(jnp.moveaxis(within, 1, 0))
    return whole.reshape(heads, count * BLOCK, count * BLOCK)[:, :tokens, :tokens]
