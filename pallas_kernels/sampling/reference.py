"""Choosing tokens the obvious way: sort, add up, cut off."""

import jax
import jax.numpy as jnp
from jax import Array

from jaxllm.pallas_kernels.sampling.blocks import BLOCK, to_blocks
from jaxllm.pallas_kernels.sampling.choice import Choice
from jaxllm.pallas_kernels.sampling.vocabulary import WHOLE, Vocabulary


def reference_choose_tokens(logits: Array, choice: Choice, vocabulary: Vocabulary = WHOLE) -> Array:
    """See `choose_tokens`; for finite logits and -inf."""
    whole = vocabulary.gather(logits)
    drawn = jax.vmap(_draw)(whole, choice)
    return jnp.where(choice.is_random, drawn, jnp.argmax(whole, axis=1)).astype(jnp.int32)


def _draw(logits: Array, choice: Choice) -> Array:
    """The token of one row [V]."""
    divisor = jnp.where(choice.is_random, choice.temperature, 1.0)
    weights = jnp.exp((logits - jnp.max(logits)) / divisor)
    weights = jnp.where(weights >= choice.min_p, weights, 0.0)
    ordered = jnp.sort(logits)[::-1]
    last = ordered[jnp.maximum(choice.top_k - 1, 0)]
    weights = jnp.where((choice.top_k > 0) & (logits < last), 0.0, weights)
    ordered = jnp.sort(weights)[::-1]
    before = jnp.cumsum(ordered) - ordered
    least = jnp.min(jnp.where(before < choice.top_p * jnp.sum(weights), ordered, jnp.inf))
    weights = jnp.where((choice.top_p < 1) & (weights < least), 0.0, weights)
    blocks = to_blocks(weights[None], 0.0)[0]
    block = _invert(jnp.sum(blocks, axis=1), choice.chance[0])
    return block * BLOCK + _invert(blocks[block], choice.chance[1])


def _invert(weights: Array, chance: Array) -> Array:
    """The first index whose cumulated weight exceeds `chance` of the sum."""
    cumulated = jnp.cumsum(weights)
    return jnp.argmax(cumulated > chance * cumulated[-1])
