"""Which numbers stand alongside tokens: the model's own or those that tokens were drawn with, with or without
softmax.
"""

import jax.numpy as jnp
from jax import Array, lax

from jaxllm.pallas_kernels.sampling.choice import Choice
from jaxllm.pallas_kernels.sampling.filters import filter_thresholds, no_thresholds, softmax_weights
from jaxllm.pallas_kernels.sampling.vocabulary import WHOLE, Vocabulary

RAW = "raw_logprobs"


def is_processed(mode: str) -> bool:
    """Whether a mode's numbers come after bias, penalties, grammars, temperature and what is cut off."""
    return mode.startswith("processed")


def is_normalized(mode: str) -> bool:
    """Whether they are log-probabilities, not logits."""
    return mode.endswith("logprobs")


def drawn_logits(processed: Array, choice: Choice, vocabulary: Vocabulary = WHOLE) -> Array:
    """The logits whose softmax tokens are drawn from, float32 [R, V]: -inf where a token was cut off.

    `processed` are those after bias, penalties and grammars. A row without temperature keeps them as they are, as in
    vLLM.
    """
    maximum = vocabulary.largest(jnp.max(processed, axis=1))
    weights = softmax_weights(processed, maximum, choice.temperature)
    lowest, least = lax.cond(
        choice.any_filter,
        lambda: filter_thresholds(weights, processed, choice, vocabulary),
        lambda: no_thresholds(processed.shape[0]),
    )
    is_kept = (processed >= lowest[:, None]) & (weights >= least[:, None])
    divided = processed / jnp.where(choice.is_random, choice.temperature, 1.0)[:, None]
    return jnp.where(is_kept | ~choice.is_random[:, None], divided, -jnp.inf)
