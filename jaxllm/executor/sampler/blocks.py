"""Sampling in blocks of rows: a step pays for the logits of the rows it has, not of those it has room for.

Axis letters: R rows, D hidden size, W words of a mask.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxllm.executor.sampler.logprobs import no_logprobs
from jaxllm.executor.sampler.rows import SamplingRows, SamplingState
from jaxllm.executor.sampler.sampler import SampledRows, sample
from jaxllm.executor.sampler.vocabulary import SAME, SPLIT, over_vocabulary
from jaxllm.executor.step_inputs import StepShape
from jaxllm.models.causal_lm import CausalLM


def sample_in_blocks(
    model: CausalLM,
    hidden: jax.Array,
    rows: SamplingRows,
    state: SamplingState,
    num_rows: jax.Array,
    shape: StepShape,
    masks: jax.Array | None = None,
    given: dict[str, jax.Array] | None = None,
    alter: Callable[..., jax.Array] | None = None,
) -> tuple[SampledRows, SamplingState]:
    """Sample from `hidden` [R, D] in blocks of rows and stop after `num_rows` (int32 []), the last row in use.

    A bucket for a large prompt has room for many requests; without blocks it would pay for all their logits. `masks`
    int32 [R, W] say which tokens are allowed, see `sample`. `alter(model, logits, rows, state, given)` makes the logits
    that tokens are chosen by, of a block's rows; `given` has arrays [R, ...].
    """
    part_of = partial(
        sample, max_logprobs=shape.max_logprobs, implementation=shape.sampling, logprobs_mode=shape.logprobs_mode
    )
    choose = over_vocabulary(part_of, model.options.mesh, (SPLIT, SAME, SPLIT, SAME, SAME, SPLIT), (SAME, SPLIT))

    def sample_block(inputs: Any, state: SamplingState, num_rows: jax.Array) -> tuple[SampledRows, SamplingState]:
        hidden, rows, masks, given = inputs
        logits = model.logits(hidden, num_rows)
        altered = None if alter is None else alter(model, logits, rows, state, given)
        sampled, state = choose(logits, rows, state, masks, num_rows, altered)
        if altered is not None:
            sampled = replace(sampled, is_empty=~jnp.isfinite(altered.max(axis=1)))
        return sampled, state

    inputs = (hidden, rows, masks, given)
    return _in_blocks(sample_block, inputs, state, num_rows, shape, altered=alter is not None)


def _in_blocks(
    sample_block: Callable[[Any, SamplingState, jax.Array], tuple[SampledRows, SamplingState]],
    inputs: Any,
    state: SamplingState,
    num_rows: jax.Array,
    shape: StepShape,
    *,
    altered: bool,
) -> tuple[SampledRows, SamplingState]:
    """`sample_block(inputs, state, num_rows)`, for some rows of the `inputs` [R, ...] at a time where R is larger."""
    total, size, max_logprobs = jax.tree.leaves(inputs)[0].shape[0], shape.sample_rows, shape.max_logprobs
    if total <= size:
        return sample_block(inputs, state, num_rows)
    padding = -total % size
    inputs = jax.tree.map(
        lambda leaf: jnp.pad(leaf, ((0, padding), *((0, 0),) * (leaf.ndim - 1))) if leaf.ndim else leaf, inputs
    )

    def block(index: jax.Array, carry: tuple[SampledRows, SamplingState]) -> tuple[SampledRows, SamplingState]:
        sampled, state = carry
        first = index * size

        def part(leaf: jax.Array) -> jax.Array:
            return lax.dynamic_slice_in_dim(leaf, first, size) if leaf.ndim else leaf

        new, state = sample_block(jax.tree.map(part, inputs), state, jnp.minimum(num_rows - first, size))
        return jax.tree.map(lambda old, leaf: lax.dynamic_update_slice_in_dim(old, leaf, first, 0), sampled, new), state

    no_tokens = jnp.zeros(total + padding, jnp.int32)
    empty = SampledRows(no_tokens, no_logprobs(total + padding, max_logprobs), no_tokens != 0 if altered else None)
    sampled, state = lax.fori_loop(0, (num_rows + size - 1) // size, block, (empty, state))
    return jax.tree.map(lambda leaf: leaf[:total], sampled), state


def put_last_tokens(
    last_tokens: jax.Array, rows: SamplingRows, sampled: SampledRows, is_last: jax.Array | None = None
) -> jax.Array:
    """`DeviceState.last_tokens` [S] with the tokens of valid rows, or of those that are the last of their requests."""
    slots = jnp.where(rows.valid if is_last is None else is_last, rows.slot, last_tokens.shape[0])
    return last_tokens.at[slots].set(sampled.token_ids, mode="drop")
