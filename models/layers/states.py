"""Reading and writing the states of a step's rows, which lie in the slots of their requests."""

from typing import Protocol

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from jaxllm.models.cache import States
from jaxllm.models.forward_context import LayerContext
from jaxllm.models.plan import StateArray
from jaxllm.pallas_kernels.recurrence.loops import apart


class HasStates(Protocol):
    """A plan of what keeps something of each request, such as a `RecurrentPlan`."""

    @property
    def states(self) -> tuple[StateArray, ...]:
        """Its state; zeros where a request begins."""
        ...


def read_states(states: States, plan: HasStates, context: LayerContext, dtype: DTypeLike) -> States:
    """The states [R, ...] of the rows, in the order of `plan.states`: zeros for rows that begin.

    `states` are the arrays [L, slots, ...] of all layers that keep the same; `dtype` is that of activations. Where
    nothing outlives the step there are none, and all rows begin.
    """
    rows = context.states
    if rows is None:
        count = len(context.ragged.kv_lens)
        return tuple(jnp.zeros((count, *each.shape), each.dtype or dtype) for each in plan.states)

    def read(array: jax.Array) -> jax.Array:
        # A slot that does not exist gives no other's state: padding rows begin, and for others it would be seen.
        found = array.at[context.layer, rows.slots].get(mode="fill", fill_value=jnp.nan)
        begins = rows.begins.reshape(-1, *(1,) * (found.ndim - 1))
        return jnp.where(begins, jnp.zeros((), array.dtype), found)

    return tuple(map(read, states))


def write_states(states: States, new: States, context: LayerContext) -> States:
    """The arrays with the new states [R, ...] of the rows, in place where they are donated."""
    rows = context.states
    if rows is None:
        return states
    slots = rows.slots
    if len(slots) == 1:
        # XLA turns a scatter of one row into an update slice, and may copy the array for it. Writing it twice does not.
        slots, new = jnp.repeat(slots, 2), tuple(jnp.repeat(each, 2, axis=0) for each in new)
    return tuple(
        array.at[context.layer, slots].set(each.astype(array.dtype), mode="drop")
        for array, each in zip(states, new, strict=True)
    )


def take_in_drafts(
    before: jax.Array, x: jax.Array, inputs: States, context: LayerContext, platform: str
) -> tuple[jax.Array, States]:
    """The last inputs [R, W, D] of rows' convolutions with the drafts that were right, and the inputs of new drafts.

    `before` are those without them, `x` [T, D] the inputs of this step. `inputs` is the array [L, slots, K, D] of
    inputs of drafts; or none, where there never are any.
    """
    if not inputs or context.states is None or context.states.drafts is None:
        return before, inputs
    rows, drafts = context.states, context.states.drafts
    width, most = before.shape[1], inputs[0].shape[2]
    padded = jnp.pad(x, ((0, most), (0, 0)))

    def exchange(own: jax.Array, old: jax.Array, new: jax.Array, count: jax.Array) -> tuple[jax.Array, jax.Array]:
        seen = jnp.concatenate([own, old.astype(own.dtype)])
        return lax.dynamic_slice_in_dim(seen, count, width), new.astype(old.dtype)

    def row(index: jax.Array, held: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        before, kept = held
        number = drafts.touched[index]
        place = (context.layer, rows.slots[number], 0, 0)
        old = lax.dynamic_slice(kept, place, (1, 1, *kept.shape[2:]))[0, 0]
        new = lax.dynamic_slice_in_dim(padded, context.ragged.query_start[number] + 1, most)
        own = lax.dynamic_index_in_dim(before, number, keepdims=False)
        # As a whole: otherwise XLA may read the slot after it is written, and copies all of them for that.
        operands = (own, old, new, drafts.num_replayed[number])
        own, new = apart(exchange, *operands, is_any=index < drafts.num_touched, platform=platform)
        return lax.dynamic_update_index_in_dim(before, own, number, 0), lax.dynamic_update_slice(
            kept, new[None, None], place
        )

    before, kept = lax.fori_loop(0, drafts.num_touched, row, (before, inputs[0]))
    return before, (kept,)
