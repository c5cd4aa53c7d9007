"""Runs a recurrence over the rows of a step: rows of one token in blocks of rows, longer ones in chunks of tokens.

Both are loops as long as the step has such rows, over states that stay in their slots: a step costs what its own rows
do, not what the batch has room for. A row's chunks begin with its first token in the step, so that what it gives does
not depend on its neighbours.
"""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from jaxllm.pallas_kernels.ragged_batch import RaggedBatch
from jaxllm.pallas_kernels.recurrence.api import LayerStates
from jaxllm.pallas_kernels.recurrence.drafts import run_drafted
from jaxllm.pallas_kernels.recurrence.loops import Carry, Inputs, Recurrence, apart, ceil, padded, put, tokens_at
from jaxllm.pallas_kernels.recurrence.rows import OUT_OF_RANGE, StateRows

CHUNK = 64
"""Tokens of a prompt that are computed at once. See docs/decisions/033-recurrences.md."""

BLOCK = {"cpu": 1}
"""Rows of one token that are computed at once, by platform: on a CPU the state of one is enough work for all cores, and
gathering several is another pass over them."""

USUAL_BLOCK = 8

DECODES, CHUNKS = "decodes", "chunks"
"""Names of the two loops in profiles."""


def run_rows(
    recurrence: Recurrence,
    inputs: Inputs,
    out: jax.ShapeDtypeStruct,
    held: LayerStates,
    *,
    chunk: int = CHUNK,
    platform: str = "cpu",
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """Outputs [T, ...], of shape and type `out`; states [L, slots, ...], updated at `layer`, in place if donated.

    The states are followed by the inputs of drafts, where there are arrays for them. Outputs of padding are finite, and
    mean nothing.
    """
    states, layer, rows, batch, _ = held
    tokens, count = out.shape[0], len(rows.slots)
    chunk, block = min(chunk, tokens), min(BLOCK.get(platform, USUAL_BLOCK), count)
    # Chunks and blocks may reach beyond the last token and row.
    spare = max(chunk, block)
    inputs = jax.tree.map(lambda array: padded(array, spare, 0), inputs)
    carry = Carry(jnp.zeros((tokens + spare, *out.shape[1:]), out.dtype), states, held.inputs)
    # The token of a step of one may be a chunk of a prompt, which does not count as a decode.
    by_token = batch.num_tokens if tokens == 1 else batch.num_decodes
    run = partial(_run_decodes, recurrence, inputs, rows, layer)
    if rows.drafts is not None:
        by_token = by_token + jnp.sum(rows.drafts.num_drafts > 0, dtype=jnp.int32)
        run = partial(run_drafted, recurrence, inputs, rows, layer, batch.query_start)
    with jax.named_scope(DECODES):
        carry = run(by_token, carry, block=block, platform=platform)
    if tokens == 1:
        return carry.out[:tokens], (carry.states, *carry.inputs)
    ends = jnp.cumsum(_chunks_of_rows(batch, chunk, by_token), dtype=jnp.int32)

    def prompt(number: jax.Array, carry: Carry) -> Carry:
        row = jnp.sum(ends <= number, dtype=jnp.int32)
        before = number - jnp.where(row > 0, ends[row - 1], 0)
        first = batch.query_start[row] + before * chunk
        length = jnp.minimum(batch.query_start[row + 1] - first, chunk)
        place = (layer, rows.slots[row], *(0,) * (states.ndim - 2))
        state = lax.dynamic_slice(carry.states, place, (1, 1, *states.shape[2:]))[0, 0]
        state = jnp.where(rows.begins[row] & (before == 0), 0, state)
        arguments = (tokens_at(inputs, first, chunk), state, length)
        made, new = apart(recurrence.chunk, *arguments, is_any=length > 0, platform=platform)
        # What reaches beyond the row's end is written over by the next one.
        new = new.astype(states.dtype)[None, None]
        after = lax.dynamic_update_slice(carry.states, new, place)
        return carry._replace(out=put(carry.out, made, first), states=after)

    with jax.named_scope(CHUNKS):
        carry = lax.fori_loop(0, ends[-1], prompt, carry)
    return carry.out[:tokens], (carry.states, *carry.inputs)


def _run_decodes(
    recurrence: Recurrence,
    inputs: Inputs,
    rows: StateRows,
    layer: int | jax.Array,
    count: jax.Array,
    carry: Carry,
    *,
    block: int,
    platform: str,
) -> Carry:
    """Compute the first `count` rows (int32 []) in blocks: row i has token i, and no other."""
    rows = StateRows(padded(rows.slots, block, OUT_OF_RANGE), padded(rows.begins, block, True))

    def decode(number: jax.Array, carry: Carry) -> Carry:
        first = number * block
        is_decode = first + jnp.arange(block, dtype=jnp.int32) < count
        own = jax.tree.map(lambda array: lax.dynamic_slice_in_dim(array, first, block), rows)
        own = StateRows(jnp.where(is_decode, own.slots, OUT_OF_RANGE), own.begins)
        before = own.read(carry.states, layer)
        some = tokens_at(inputs, first, block)
        made, new = apart(recurrence.step, some, before, is_any=is_decode[0], platform=platform)
        return carry._replace(out=put(carry.out, made, first), states=own.write(carry.states, layer, new))

    return lax.fori_loop(0, ceil(count, block), decode, carry)


def _chunks_of_rows(batch: RaggedBatch, chunk: int, token_by_token: jax.Array) -> jax.Array:
    """In how many chunks each row is computed, int32 [R]; 0 for the first ones, which are computed token by token."""
    lengths = batch.query_start[1:] - batch.query_start[:-1]
    is_first = jnp.arange(len(lengths), dtype=jnp.int32) < token_by_token
    return jnp.where(is_first, 0, ceil(lengths, chunk))
