"""Runs a recurrence over the rows of a step: rows of one token in blocks of rows, longer ones in chunks of tokens.

Both are loops as long as the step has such rows, over states that stay in their slots: a step costs what its own rows
do, not what the batch has room for. A row's chunks begin with its first token in the step, so that what it gives does
not depend on its neighbours.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax import lax

from jaxllm.pallas_kernels.ragged_batch import RaggedBatch
from jaxllm.pallas_kernels.recurrence.api import LayerStates
from jaxllm.pallas_kernels.recurrence.rows import OUT_OF_RANGE, StateRows

CHUNK = 64
"""Tokens of a prompt that are computed at once. See docs/decisions/033-recurrences.md."""

BLOCK = {"cpu": 1}
"""Rows of one token that are computed at once, by platform: on a CPU the state of one is enough work for all cores, and
gathering several is another pass over them."""

USUAL_BLOCK = 8

DECODES, CHUNKS = "decodes", "chunks"
"""Names of the two loops in profiles."""

Inputs = Any
"""A pytree of arrays with a token axis in front."""


class Recurrence(Protocol):
    """A recurrence over tokens: `inputs` are a pytree, a state is an array."""

    def step(self, inputs: Inputs, states: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Outputs [B, ...] and states [B, ...] of B rows, each with one token, from inputs [B, ...]."""
        ...

    def chunk(self, inputs: Inputs, state: jax.Array, length: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Outputs [C, ...] and the state of one row with C tokens, of which `length` (int32 []) count."""
        ...


class _Carry(NamedTuple):
    out: jax.Array
    states: jax.Array


def run_rows(
    recurrence: Recurrence,
    inputs: Inputs,
    out: jax.ShapeDtypeStruct,
    held: LayerStates,
    *,
    chunk: int = CHUNK,
    platform: str = "cpu",
) -> tuple[jax.Array, jax.Array]:
    """Outputs [T, ...], of shape and type `out`, and states [L, slots, ...], updated at `layer`, in place if donated.

    Outputs of padding are finite, and mean nothing.
    """
    states, layer, rows, batch = held
    tokens, count = out.shape[0], len(rows.slots)
    chunk, block = min(chunk, tokens), min(BLOCK.get(platform, USUAL_BLOCK), count)
    # Chunks and blocks may reach beyond the last token and row.
    spare = max(chunk, block)
    padded = jax.tree.map(lambda array: _padded(array, spare, 0), inputs)
    rows = StateRows(_padded(rows.slots, block, OUT_OF_RANGE), _padded(rows.begins, block, True))
    carry = _Carry(jnp.zeros((tokens + spare, *out.shape[1:]), out.dtype), states)
    # The token of a step of one may be a chunk of a prompt, which does not count as a decode.
    decodes = batch.num_tokens if tokens == 1 else batch.num_decodes

    def decode(number: jax.Array, carry: _Carry) -> _Carry:
        first = number * block
        is_decode = first + jnp.arange(block, dtype=jnp.int32) < decodes
        own = jax.tree.map(lambda array: lax.dynamic_slice_in_dim(array, first, block), rows)
        own = StateRows(jnp.where(is_decode, own.slots, OUT_OF_RANGE), own.begins)
        before = own.read(carry.states, layer)
        made, new = _apart(
            recurrence.step, _slice(padded, first, block), before, is_any=is_decode[0], platform=platform
        )
        return _Carry(_put(carry.out, made, first), own.write(carry.states, layer, new))

    with jax.named_scope(DECODES):
        carry = lax.fori_loop(0, _ceil(decodes, block), decode, carry)
    if tokens == 1:
        return carry.out[:tokens], carry.states
    ends = jnp.cumsum(_chunks_of_rows(batch, chunk), dtype=jnp.int32)

    def prompt(number: jax.Array, carry: _Carry) -> _Carry:
        row = jnp.sum(ends <= number, dtype=jnp.int32)
        before = number - jnp.where(row > 0, ends[row - 1], 0)
        first = batch.query_start[row] + before * chunk
        length = jnp.minimum(batch.query_start[row + 1] - first, chunk)
        place = (layer, rows.slots[row], *(0,) * (states.ndim - 2))
        state = lax.dynamic_slice(carry.states, place, (1, 1, *states.shape[2:]))[0, 0]
        state = jnp.where(rows.begins[row] & (before == 0), 0, state)
        arguments = (_slice(padded, first, chunk), state, length)
        made, new = _apart(recurrence.chunk, *arguments, is_any=length > 0, platform=platform)
        # What reaches beyond the row's end is written over by the next one.
        new = new.astype(states.dtype)[None, None]
        return _Carry(_put(carry.out, made, first), lax.dynamic_update_slice(carry.states, new, place))

    with jax.named_scope(CHUNKS):
        carry = lax.fori_loop(0, ends[-1], prompt, carry)
    return carry.out[:tokens], carry.states


def _apart(
    function: Callable[..., tuple[jax.Array, jax.Array]], *operands: Any, is_any: jax.Array, platform: str
) -> tuple[jax.Array, jax.Array]:
    """The result of a function for a state, read before and written after it as a whole.

    Otherwise XLA reads the state's slot wherever it is used, which may be after the write: it copies all slots then.
    Compilers for CPUs drop optimization barriers before they fuse, but fuse nothing into a conditional. `is_any` is
    true, which they do not know.
    """
    if platform != "cpu":
        return lax.optimization_barrier(function(*lax.optimization_barrier(operands)))
    made = jax.eval_shape(function, *operands)
    nothing = jax.tree.map(lambda each: jnp.zeros(each.shape, each.dtype), made)
    result: tuple[jax.Array, jax.Array] = lax.cond(is_any, function, lambda *_: nothing, *operands)
    return result


def _chunks_of_rows(batch: RaggedBatch, chunk: int) -> jax.Array:
    """In how many chunks each row is computed, int32 [R]; 0 for those of one token at the front."""
    lengths = batch.query_start[1:] - batch.query_start[:-1]
    is_decode = jnp.arange(len(lengths), dtype=jnp.int32) < batch.num_decodes
    return jnp.where(is_decode, 0, _ceil(lengths, chunk))


def _ceil(number: jax.Array, size: int) -> jax.Array:
    """How many times `size` holds `number`, rounded up."""
    return (number + (size - 1)) // size


def _padded(array: jax.Array, spare: int, value: Any) -> jax.Array:
    """An array with `spare` more elements of that value along the first axis."""
    return jnp.pad(array, ((0, spare), *((0, 0),) * (array.ndim - 1)), constant_values=value)


def _slice(inputs: Inputs, first: jax.Array, size: int) -> Inputs:
    return jax.tree.map(lambda array: lax.dynamic_slice_in_dim(array, first, size), inputs)


def _put(out: jax.Array, made: jax.Array, first: jax.Array) -> jax.Array:
    return lax.dynamic_update_slice_in_dim(out, made.astype(out.dtype), first, axis=0)
