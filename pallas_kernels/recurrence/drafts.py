"""Rows of one known token and perhaps drafts after it; nobody knows yet whether the drafts are right.

A state cannot take back a token. So the one that is kept is that after the known token, and drafts leave only their
inputs. The next step of the row begins with the drafts that turned out to be right, from these inputs. A few inputs
take a small part of the memory of a state: one for each draft would take many times as much. All are computed token by
token, by the operations that compute decodes: outputs have the bits that they would have without drafts.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxllm.pallas_kernels.recurrence.loops import Carry, Inputs, Recurrence, apart, ceil, padded, put, tokens_at
from jaxllm.pallas_kernels.recurrence.rows import OUT_OF_RANGE, DraftRows, StateRows


class _Rows(NamedTuple):
    """Rows of a block, int32 [B] each but for `begins`."""

    slots: jax.Array
    begins: jax.Array
    places: jax.Array
    """Of their first tokens."""
    num_replayed: jax.Array
    num_drafts: jax.Array


@dataclass(frozen=True)
class _Run:
    """The loops over rows, as their methods trace them."""

    recurrence: Recurrence
    inputs: Inputs
    rows: StateRows
    drafts: DraftRows
    layer: int | jax.Array
    query_start: jax.Array
    beyond: int
    """A place of no token."""
    block: int
    platform: str

    def plain(self, first: jax.Array, end: jax.Array, carry: Carry) -> Carry:
        """A block of rows with neither old drafts nor new ones: those from place `first` of the order on."""
        is_row, own = self.rows_at(first, end)
        kept = StateRows(own.slots, own.begins)
        made, new = self.step(self.taken(own.places), kept.read(carry.states, self.layer), is_row)
        out = self.placed(carry.out, made, own.places, is_row)
        return carry._replace(out=out, states=kept.write(carry.states, self.layer, new))

    def touched(self, first: jax.Array, end: jax.Array, carry: Carry) -> Carry:
        """A block of rows with old drafts or new ones."""
        is_row, own = self.rows_at(first, end)
        kept = StateRows(own.slots, own.begins)

        def replay(index: jax.Array, state: jax.Array) -> jax.Array:
            is_part = index < own.num_replayed
            old = tuple(each.at[self.layer, own.slots, index].get(mode="fill", fill_value=0) for each in carry.inputs)
            _, new = self.step(self.recurrence.restored(old), state, is_part)
            return new if self.block == 1 else _chosen(is_part, new, state)

        state = lax.fori_loop(0, jnp.max(own.num_replayed), replay, kept.read(carry.states, self.layer))
        made, state = self.step(self.taken(own.places), state, is_row)
        states = kept.write(carry.states, self.layer, state)
        out = self.placed(carry.out, made, own.places, is_row)

        def draft(index: jax.Array, at: tuple[Carry, jax.Array]) -> tuple[Carry, jax.Array]:
            (carry, state), is_draft = at, index < own.num_drafts
            places = own.places + 1 + index
            new, slots = self.taken(places), jnp.where(is_draft, own.slots, OUT_OF_RANGE)
            held = tuple(
                array.at[self.layer, slots, index].set(each.astype(array.dtype), mode="drop")
                for array, each in zip(carry.inputs, self.recurrence.kept(new), strict=True)
            )
            made, state = self.step(new, state, is_draft)
            return carry._replace(out=self.placed(carry.out, made, places, is_draft), inputs=held), state

        carry = Carry(out, states, carry.inputs)
        return lax.fori_loop(0, jnp.max(own.num_drafts), draft, (carry, state))[0]

    def rows_at(self, first: jax.Array, end: jax.Array) -> tuple[jax.Array, _Rows]:
        """Which rows of a block there are, bool [B], and the rows."""
        rows, drafts = self.rows, self.drafts
        is_row = first + jnp.arange(self.block, dtype=jnp.int32) < end
        numbers = lax.dynamic_slice_in_dim(padded(drafts.touched, self.block, 0), first, self.block)
        arrays = (rows.slots, rows.begins, self.query_start, drafts.num_replayed, drafts.num_drafts)
        own = _Rows(*(array.at[numbers].get(mode="promise_in_bounds") for array in arrays))
        # What is no row reads no state, and writes nothing.
        none = {"num_replayed": 0, "num_drafts": 0, "slots": OUT_OF_RANGE}
        return is_row, own._replace(**{name: jnp.where(is_row, getattr(own, name), none[name]) for name in none})

    def step(self, inputs: Inputs, states: jax.Array, is_any: jax.Array) -> tuple[jax.Array, jax.Array]:
        """A token of each row."""
        return apart(self.recurrence.step, inputs, states, is_any=is_any[0], platform=self.platform)

    def taken(self, places: jax.Array) -> Inputs:
        """The inputs of tokens at these places."""
        if self.block == 1:
            return tokens_at(self.inputs, places[0], 1)
        return jax.tree.map(lambda array: array.at[places].get(mode="clip"), self.inputs)

    def placed(self, out: jax.Array, made: jax.Array, places: jax.Array, is_any: jax.Array) -> jax.Array:
        """The outputs with those that were `made` of tokens at these places, where there are any."""
        if self.block == 1:
            return put(out, made, places[0])
        return out.at[jnp.where(is_any, places, self.beyond)].set(made.astype(out.dtype), mode="drop")


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
    drafts, beyond = rows.drafts, carry.out.shape[0]
    assert drafts is not None
    run = _Run(recurrence, inputs, rows, drafts, layer, query_start, beyond, block, platform)
    first, others = drafts.num_touched, count - drafts.num_touched
    # In loops of their own: one over no drafts would still cost another copy of the state.
    with_drafts = lax.fori_loop(0, ceil(first, block), lambda i, carry: run.touched(i * block, first, carry), carry)
    return lax.fori_loop(
        0, ceil(others, block), lambda i, carry: run.plain(first + i * block, count, carry), with_drafts
    )


def _chosen(condition: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
    """`new` [B, ...] where the condition [B] holds, else `old`."""
    return jnp.where(condition.reshape(-1, *(1,) * (new.ndim - 1)), new, old)
