"""The arrays the sampler works on: parameters of a step's rows, and what the device keeps per slot."""

from dataclasses import dataclass, replace
from typing import Self

import jax
import jax.numpy as jnp
from jax import Array, lax
from jax.tree_util import register_dataclass

from jaxllm.executor.sampler.row_numbers import FLOAT_FIELDS
from jaxllm.executor.shards import local_slots, max_over_shards
from jaxllm.models.sharding import within_shard
from jaxllm.pallas_kernels.sampling.vocabulary import WHOLE, Vocabulary

INT_FIELDS = ("top_k", "seed", "step", "slot", "bits")
"""Rows of the packed int32 array. `bits` holds the booleans."""

VALID, BIAS, LOGPROBS, UNCOUNTED = 1, 2, 4, 8
"""The booleans in `bits`: the row's token counts; the slot has a bias row; its logprobs are wanted; its token may turn
out not to be one of the output, and is counted for penalties by `count_tokens` if it is."""


IN_PROMPT = 1 << 30
"""The bit of `SamplingState.seen` that marks tokens of the prompt; the bits below count."""


@register_dataclass
@dataclass(frozen=True)
class SamplingRows:
    """Parameters of the rows of one step. Arrays are [R] unless said otherwise.

    `temperature` is 0 for greedy rows, `top_k` 0, `top_p` 1 and `min_p` 0 where switched off. A row's noise depends
    on `seed` and `step` (the index of the token in the output) only. Rows with `valid` false give an arbitrary token
    and change nothing. The flags say for the whole batch what needs to be computed at all.
    """

    temperature: Array  # float32
    top_k: Array  # int32
    top_p: Array  # float32
    min_p: Array  # float32
    presence: Array  # float32
    frequency: Array  # float32
    repetition: Array  # float32
    seed: Array  # int32, all 32 bits count
    step: Array  # int32
    slot: Array  # int32
    valid: Array  # bool
    use_bias: Array  # bool
    any_random: Array  # bool []
    any_filter: Array  # bool []
    any_penalty: Array  # bool []
    any_bias: Array  # bool []
    any_logprobs: Array  # bool []
    preceding: Array | None = None  # int32 [R, K], drafts of the same request before the row; -1 where there are fewer
    is_counted: Array | None = None  # bool, whether the token is counted in this step; None: all are

    @classmethod
    def unpack(cls, ints: Array, floats: Array, preceding: Array | None = None) -> Self:
        """Rows from `ints` int32 [I, R] and `floats` float32 [N, R], as `SamplingTable.pack` writes them.

        Columns of zeros are padding. In the steps of an engine with drafts `preceding` says which are before each row.
        """
        of_int = dict(zip(INT_FIELDS, ints, strict=True))
        of_float = dict(zip(FLOAT_FIELDS, floats, strict=True))
        bits = of_int.pop("bits")
        valid, use_bias, wants_logprobs = (bits & mask != 0 for mask in (VALID, BIAS, LOGPROBS))
        random = valid & (of_float["temperature"] > 0)
        filtered = (of_int["top_k"] > 0) | (of_float["top_p"] < 1) | (of_float["min_p"] > 0)
        penalised = (of_float["presence"] != 0) | (of_float["frequency"] != 0) | (of_float["repetition"] != 1)
        flags = {
            "any_random": jnp.any(random),
            "any_filter": jnp.any(random & filtered),
            "any_penalty": jnp.any(valid & penalised),
            "any_bias": jnp.any(valid & use_bias),
            "any_logprobs": jnp.any(valid & wants_logprobs),
        }
        is_counted = None if preceding is None else bits & UNCOUNTED == 0
        return cls(
            **of_int,
            **of_float,
            valid=valid,
            use_bias=use_bias,
            **max_over_shards(flags),
            preceding=preceding,
            is_counted=is_counted,
        )


@register_dataclass
@dataclass(frozen=True)
class SamplingState:
    """What sampling remembers for every slot, on the device; donated through every step.

    `seen` int32 [S, V]: how often the output holds each token, plus `IN_PROMPT` if the prompt does. (A bool array for
    the prompt would be packed on TPUs, and reading one row of it copies all.) `bias` float32 [S, V]: added to the
    logits; -inf forbids. A slot's rows mean something only while its request uses penalties or a bias; others leave
    what was there.
    """

    seen: Array
    bias: Array


def empty_state(num_slots: int, vocab_size: int) -> SamplingState:
    """The state before the first request."""
    shape = (num_slots, vocab_size)
    return SamplingState(jnp.zeros(shape, jnp.int32), jnp.zeros(shape, jnp.float32))


def set_row(state: SamplingState, slot: Array, output_counts: Array, prompt_seen: Array, bias: Array) -> SamplingState:
    """Replace the rows of `slot` (int32 []) by three rows [V]: int32, bool and float32."""

    if within_shard() is None:

        def put(array: Array, row: Array) -> Array:
            changed: Array = lax.dynamic_update_index_in_dim(array, row, slot, 0)
            return changed

    else:
        own = local_slots(slot, state.bias.shape[0])
        # Out of range, for another shard's slot, nothing changes.
        place = jnp.where(own < 0, state.bias.shape[0], own)

        def put(array: Array, row: Array) -> Array:
            return array.at[place].set(row, mode="drop")

    seen = output_counts | jnp.where(prompt_seen, IN_PROMPT, 0)
    return SamplingState(put(state.seen, seen), put(state.bias, bias))


def set_bias(
    state: SamplingState, slots: Array, token_ids: Array, values: Array, vocabulary: Vocabulary = WHOLE
) -> SamplingState:
    """Set single entries of the bias: `bias[slots[i], token_ids[i]] = values[i]`, all [U]; a slot of -1 is padding."""
    slots = local_slots(slots, state.bias.shape[0])
    outside = jnp.where(slots < 0, state.bias.shape[0], slots)
    place = vocabulary.place(token_ids, state.bias.shape[1])
    return replace(state, bias=state.bias.at[outside, place].set(values, mode="drop"))


def count_tokens(state: SamplingState, slots: Array, token_ids: Array, vocabulary: Vocabulary = WHOLE) -> SamplingState:
    """Count tokens of the outputs of slots, both int32 [U], where the steps that sampled them did not.

    A slot of -1 is padding.
    """
    slots = local_slots(slots, state.seen.shape[0])
    outside = jnp.where(slots < 0, state.seen.shape[0], slots)
    place = vocabulary.place(token_ids, state.seen.shape[1])
    return replace(state, seen=state.seen.at[outside, place].add(1, mode="drop"))


def rows_of(array: Array, slots: Array) -> Array:
    """`array[slots]` for slots known to be in range: [R, V]."""
    rows: Array = jax.vmap(lambda slot: lax.dynamic_index_in_dim(array, slot, 0, keepdims=False))(slots)
    return rows
