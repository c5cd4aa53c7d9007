"""Changes of the logits before a token is chosen: bias and forbidden tokens, then penalties."""

from collections.abc import Callable

import jax.numpy as jnp
from jax import Array, lax

from jaxllm.executor.sampler.rows import IN_PROMPT, SamplingRows, SamplingState, rows_of


def process(logits: Array, rows: SamplingRows, state: SamplingState, unchanged: Callable[[], Array]) -> Array:
    """`logits` float32 [R, V] with bias and penalties applied; `unchanged()` when no row wants any.

    Rows of the state are read inside the branches: a branch not taken reads nothing.
    """

    def changed() -> Array:
        biased = lax.cond(rows.any_bias, lambda: _add_bias(logits, rows, state), lambda: logits)
        penalised: Array = lax.cond(rows.any_penalty, lambda: _penalise(biased, rows, state), lambda: biased)
        return penalised

    processed: Array = lax.cond(rows.any_bias | rows.any_penalty, changed, unchanged)
    return processed


def _add_bias(logits: Array, rows: SamplingRows, state: SamplingState) -> Array:
    bias = rows_of(state.bias, rows.slot)
    return jnp.where(rows.use_bias[:, None], logits + bias, logits)


def _penalise(logits: Array, rows: SamplingRows, state: SamplingState) -> Array:
    """Repetition penalty as in CTRL (arXiv 1909.05858) over prompt and output; the others as OpenAI defines them."""
    seen = rows_of(state.seen, rows.slot)
    counts = seen & (IN_PROMPT - 1)
    repetition = rows.repetition[:, None]
    weakened = jnp.where(logits > 0, logits / repetition, logits * repetition)
    # Rows without penalties hold no meaningful counts, but multiply them by zero.
    penalised = jnp.where((seen != 0) & (repetition != 1), weakened, logits)
    penalised -= rows.frequency[:, None] * counts.astype(jnp.float32)
    return penalised - rows.presence[:, None] * (counts > 0).astype(jnp.float32)
