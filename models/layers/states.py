"""Reading and writing the states of a step's rows, which lie in the slots of their requests."""

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxllm.models.cache import States
from jaxllm.models.forward_context import LayerContext
from jaxllm.models.plan import RecurrentPlan


def read_states(states: States, plan: RecurrentPlan, context: LayerContext, dtype: DTypeLike) -> States:
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
