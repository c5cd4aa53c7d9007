"""Changes of the logits before a token is chosen: bias and forbidden tokens, then penalties."""

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array, lax

from jaxllm.executor.sampler.rows import IN_PROMPT, SamplingRows, SamplingState, rows_of
from jaxllm.pallas_kernels.sampling.vocabulary import WHOLE, Vocabulary


def process(
    logits: Array,
    rows: SamplingRows,
    state: SamplingState,
    unchanged: Callable[[], Array],
    vocabulary: Vocabulary = WHOLE,
) -> Array:
    """`logits` float32 [R, V] with bias and penalties applied; `unchanged()` when no row wants any.

    Rows of the state are read inside the branches: a branch not taken reads nothing.
    """

    def changed() -> Array:
        biased = lax.cond(rows.any_bias, lambda: _add_bias(logits, rows, state), lambda: logits)
        penalised: Array = lax.cond(
            rows.any_penalty, lambda: _penalise(biased, rows, state, vocabulary), lambda: biased
        )
        return penalised

    processed: Array = lax.cond(rows.any_bias | rows.any_penalty, changed, unchanged)
    return processed


def _add_bias(logits: Array, rows: SamplingRows, state: SamplingState) -> Array:
    bias = rows_of(state.bias, rows.slot)
    return jnp.where(rows.use_bias[:, None], logits + bias, logits)


def _penalise(logits: Array, rows: SamplingRows, state: SamplingState, vocabulary: Vocabulary) -> Array:
    """Repetition penalty as in CTRL (arXiv 1909.05858) over prompt and output; the others as OpenAI defines them."""
    seen = rows_of(state.seen, rows.slot)
    if rows.preceding is not None:
        # As if these drafts had been accepted: if one is not, nobody sees what comes of the row.
        place = vocabulary.place(jnp.maximum(rows.preceding, 0), seen.shape[1])
        outside = jnp.where(rows.preceding < 0, seen.shape[1], place)
        seen = seen.at[jnp.arange(len(seen))[:, None], outside].add(1, mode="drop")
    counts = seen & (IN_PROMPT - 1)
    repetition = rows.repetition[:, None]
    weakened = jnp.where(logits > 0, logits / repetition, logits * repetition)
    # Rows without penalties hold no meaningful counts, but multiply them by zero.
    penalised = jnp.where((seen != 0) & (repetition != 1), weakened, logits)
    penalised -= rows.frequency[:, None] * counts.astype(jnp.float32)
    return penalised - rows.presence[:, None] * (counts > 0).astype(jnp.float32)
