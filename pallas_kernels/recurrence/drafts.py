"""Rows of one known token and perhaps drafts after it, of which nobody knows yet whether they are right.

A state cannot take back a token. So the one that is kept is that after the known token, and drafts leave only their
inputs. The next step of the row begins with the drafts that turned out to be right, from these inputs. A few inputs
take a small part of the memory of a state: one for each draft would take many times as much. All are computed token by
token, by the operations that compute decodes: outputs have the bits that they would have without drafts.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxllm.pallas_kernels.recurrence.loops import Carry, Inputs, Recurrence, apart, ceil, padded, put, tokens_at
from jaxllm.pallas_kernels.recurrence.rows import OUT_OF_RANGE, StateRows


class _Rows(NamedTuple):
    """Rows of a block, int32 [B] each but for `begins`."""

    slots: jax.Array
    begins: jax.Array
    places: jax.Array
    """Of their first tokens."""
    num_replayed: jax.Array
    num_drafts: jax.Array


def run_drafted(
    recurrence: Recurrence,
    inputs: Inputs,
    rows: StateRows,
    layer: int | jax.Array,
    query_start: jax.Array,
    count: jax.Array,
    carry: Carry,
    *,
    block: int,
    platform: str,
) -> Carry:
    """Compute the first `count` rows (int32 []) in blocks; `inputs` [T + spare, ...] has places beyond all tokens."""
    assert rows.drafts is not None
    drafts, spare = rows.drafts, carry.out.shape[0]
    every = _Rows(
        padded(rows.slots, block, OUT_OF_RANGE),
        padded(rows.begins, block, True),
        padded(query_start[:-1], block, 0),
        padded(drafts.num_replayed, block, 0),
        padded(drafts.num_drafts, block, 0),
    )

    def taken(places: jax.Array) -> Inputs:
        if block == 1:
            return tokens_at(inputs, places[0], 1)
        return jax.tree.map(lambda array: array.at[places].get(mode="clip"), inputs)

    def placed(out: jax.Array, made: jax.Array, places: jax.Array) -> jax.Array:
        if block == 1:
            return put(out, made, places[0])
        return out.at[places].set(made.astype(out.dtype), mode="drop")

    def some(number: jax.Array, carry: Carry) -> Carry:
        first = number * block
        is_row = first + jnp.arange(block, dtype=jnp.int32) < count
        own = _Rows(*(lax.dynamic_slice_in_dim(array, first, block) for array in every))
        own = own._replace(slots=jnp.where(is_row, own.slots, OUT_OF_RANGE))
        kept = StateRows(own.slots, own.begins)

        def replay(index: jax.Array, state: jax.Array) -> jax.Array:
            is_part = index < own.num_replayed
            old = tuple(each.at[layer, own.slots, index].get(mode="fill", fill_value=0) for each in carry.inputs)
            _, new = apart(recurrence.step, recurrence.restored(old), state, is_any=is_part[0], platform=platform)
            return new if block == 1 else _chosen(is_part, new, state)

        state = lax.fori_loop(0, jnp.max(own.num_replayed), replay, kept.read(carry.states, layer))
        made, state = apart(recurrence.step, taken(own.places), state, is_any=is_row[0], platform=platform)
        states = kept.write(carry.states, layer, state)
        out = placed(carry.out, made, jnp.where(is_row, own.places, spare))

        def draft(
            index: jax.Array, at: tuple[jax.Array, tuple[jax.Array, ...], jax.Array]
        ) -> tuple[jax.Array, tuple[jax.Array, ...], jax.Array]:
            out, held, state = at
            is_draft, places = index < own.num_drafts, own.places + 1 + index
            new = taken(places)
            slots = jnp.where(is_draft, own.slots, OUT_OF_RANGE)
            held = tuple(
                array.at[layer, slots, index].set(each.astype(array.dtype), mode="drop")
                for array, each in zip(held, recurrence.kept(new), strict=True)
            )
            made, state = apart(recurrence.step, new, state, is_any=is_draft[0], platform=platform)
            return placed(out, made, jnp.where(is_draft, places, spare)), held, state

        out, held, _ = lax.fori_loop(0, jnp.max(own.num_drafts), draft, (out, carry.inputs, state))
        return Carry(out, states, held)

    return lax.fori_loop(0, ceil(count, block), some, carry)


def _chosen(condition: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
    """`new` [B, ...] where the condition [B] holds, else `old`."""
    return jnp.where(condition.reshape(-1, *(1,) * (new.ndim - 1)), new, old)
