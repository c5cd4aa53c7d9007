"""Programs that make or change the device state outside of a step.

Axis letters: P pages or slots of recurrent states, L layers, S slots, W page-table width, D hidden size.
"""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxllm.executor.compile.program_context import ProgramBody, ProgramContext
from jaxllm.executor.device_state import DeviceState, StageState
from jaxllm.executor.sampler.rows import count_tokens, set_bias, set_row
from jaxllm.executor.sampler.table import UPDATE_SIZE
from jaxllm.executor.sampler.vocabulary import SAME, SPLIT, over_vocabulary
from jaxllm.executor.shards import local_slots
from jaxllm.pallas_kernels.cpu_common.zeros import zeros


def empty_state_body(context: ProgramContext[Any]) -> ProgramBody:
    """Makes the state, all zeros."""

    def empty_state() -> StageState:
        state = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), context.state)
        if not context.uses_native_kernels:
            return state
        names = [name for name in ("kv_cache", "drafter_cache") if hasattr(state, name)]
        shapes = {name: getattr(context.state, name) for name in names}
        return replace(state, **jax.tree.map(lambda leaf: zeros(leaf.shape, leaf.dtype), shapes))

    return ProgramBody(empty_state)


def set_pages_body(context: ProgramContext[Any]) -> ProgramBody:
    """Replaces rows of the page table."""
    rows, width = context.shape.rows_at_once, context.state.page_table.shape[1]
    return ProgramBody(set_pages, (context.host((rows,)), context.host((rows, width))))


def copy_pages_body(context: ProgramContext[Any]) -> ProgramBody:
    """Copies pages of the KV cache. In one step, each slot can get a copy of one page of each table."""
    return _copies(context, context.slots * context.shape.num_tables)


def copy_states_body(context: ProgramContext[DeviceState]) -> ProgramBody:
    """Copies states of recurrent layers. In one step, each slot can be read, or be saved in a snapshot."""
    return _copies(context, context.slots)


def _copies(context: ProgramContext[Any], most: int) -> ProgramBody:
    return ProgramBody(copy_places, (context.of_shards(2, most), context.of_shards()))


def set_embeddings_body(context: ProgramContext[DeviceState]) -> ProgramBody:
    """Brings embeddings of prompts."""
    hidden = context.state.hidden
    rows = embeddings_at_once(hidden.shape[0] // context.shape.shards)
    return ProgramBody(set_embeddings, (context.host((rows,)), context.host((rows, hidden.shape[1]), hidden.dtype)))


def set_row_body(context: ProgramContext[DeviceState]) -> ProgramBody:
    """Replaces what sampling remembers for a slot."""
    size = context.state.sampling.bias.shape[1:]
    rows = [context.host(size, dtype, "vocab") for dtype in (np.int32, np.bool_, np.float32)]
    return ProgramBody(set_row, (context.host(), *rows))


def set_bias_body(context: ProgramContext[DeviceState]) -> ProgramBody:
    """Sets entries of the bias."""
    entries = [context.host((UPDATE_SIZE,), dtype) for dtype in (np.int32, np.int32, np.float32)]
    # Each device changes its part: left to itself, the compiler would gather the whole array for it.
    function = over_vocabulary(set_bias, context.mesh, (SPLIT, SAME, SAME, SAME), SPLIT)
    return ProgramBody(function, tuple(entries))


def count_tokens_body(context: ProgramContext[DeviceState]) -> ProgramBody:
    """Counts tokens of outputs for penalties."""
    entries = [context.host((UPDATE_SIZE,)), context.host((UPDATE_SIZE,))]
    function = over_vocabulary(count_tokens, context.mesh, (SPLIT, SAME, SAME), SPLIT)
    return ProgramBody(function, tuple(entries))


def embeddings_at_once(most_tokens: int) -> int:
    """Embeddings that one call of `set_embeddings` brings, of a step that has at most so many tokens."""
    return min(256, most_tokens)


def set_pages(page_table: jax.Array, slots: jax.Array, rows: jax.Array) -> jax.Array:
    """Replace the rows of `slots` (int32 [U]) in a table [S, W] by `rows` [U, W]; a slot of -1 is padding."""
    slots = local_slots(slots, page_table.shape[0])
    outside = jnp.where(slots < 0, page_table.shape[0], slots)
    return page_table.at[outside].set(rows, mode="drop")


def set_embeddings(hidden: jax.Array, places: jax.Array, rows: jax.Array) -> jax.Array:
    """Put `rows` [E, D] at `places` (int32 [E]) of the next step's tokens, in `DeviceState.hidden`; -1 is padding."""
    places = local_slots(places, hidden.shape[0])
    outside = jnp.where(places < 0, hidden.shape[0], places)
    return hidden.at[outside].set(rows, mode="drop")


def copy_places(arrays: Any, places: jax.Array, count: jax.Array) -> Any:
    """Copy pages or slots of arrays [L, P, ...], of the first `count` pairs (from, to) in `places` int32 [2, N].

    They are copied in this order.
    """

    def copy_of(array: jax.Array, index: jax.Array) -> jax.Array:
        place = lax.dynamic_slice_in_dim(array, places[0, index], 1, axis=1)
        return lax.dynamic_update_slice_in_dim(array, place, places[1, index], axis=1)

    def copy(index: jax.Array, arrays: Any) -> Any:
        return jax.tree.map(partial(copy_of, index=index), arrays)

    # One after the other, in place: gathering all at first would take room for all.
    return lax.fori_loop(0, count.reshape(()), copy, arrays)
