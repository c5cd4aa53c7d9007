"""The sampler's tests share rows made from keywords, and an oracle that sorts."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.executor.sampler.row_numbers import FLOAT_FIELDS
from jaxllm.executor.sampler.rows import (
    BIAS,
    INT_FIELDS,
    LOGPROBS,
    VALID,
    SamplingRows,
    SamplingState,
    empty_state,
    set_row,
)
from jaxllm.executor.sampler.sampler import SampledRows, sample

MAX_LOGPROBS = 5
NEUTRAL = {"top_p": 1.0, "repetition": 1.0}


def packed_rows(
    num_rows: int, *, bias: bool = False, logprobs: bool = False, **values: Any
) -> tuple[jax.Array, jax.Array]:
    """Packed rows; a keyword is a scalar, or an array with one entry per row."""
    values["bits"] = VALID | BIAS * bias | LOGPROBS * logprobs
    ints, floats = (
        np.stack([np.broadcast_to(values.pop(name, NEUTRAL.get(name, 0)), num_rows).astype(dtype) for name in names])
        for names, dtype in ((INT_FIELDS, np.int32), (FLOAT_FIELDS, np.float32))
    )
    assert not values
    return jnp.asarray(ints), jnp.asarray(floats)


def make_state(counts: np.ndarray, in_prompt: np.ndarray, bias: np.ndarray) -> SamplingState:
    """The state that holds these arrays, all [S, V]."""
    state = empty_state(*counts.shape)
    for slot, row in enumerate(zip(counts, in_prompt, bias, strict=True)):
        state = set_row(state, jnp.int32(slot), *map(jnp.asarray, row))
    return state


@jax.jit
def run(
    logits: jax.Array, ints: jax.Array, floats: jax.Array, state: SamplingState
) -> tuple[SampledRows, SamplingState]:
    """`sample` on packed rows."""
    return sample(logits, SamplingRows.unpack(ints, floats), state, max_logprobs=MAX_LOGPROBS)


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities in float64."""
    weights = np.exp(logits.astype(np.float64) - logits.max())
    chances: np.ndarray = weights / weights.sum()
    return chances


def filtered(
    logits: np.ndarray, temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> np.ndarray:
    """The distribution after min-p, top-k and top-p of one row, by sorting: float64 [V]."""
    chances = softmax(logits.astype(np.float64) / temperature)
    chances[chances < min_p * chances.max()] = 0
    if top_k:
        chances[logits < np.sort(logits)[-top_k]] = 0
    chances /= chances.sum()
    order = np.argsort(-chances, kind="stable")
    before = np.cumsum(chances[order]) - chances[order]
    last = chances[order][before < top_p].min()
    chances[chances < last] = 0
    result: np.ndarray = chances / chances.sum()
    return result


def penalised(
    logits: np.ndarray, counts: np.ndarray, seen: np.ndarray, presence: float, frequency: float, repetition: float
) -> np.ndarray:
    """The penalties as their papers and OpenAI's documentation define them, for one row."""
    changed = logits.astype(np.float64).copy()
    for token in np.flatnonzero(seen | (counts > 0)):
        changed[token] = changed[token] / repetition if changed[token] > 0 else changed[token] * repetition
    result: np.ndarray = changed - frequency * counts - presence * (counts > 0)
    return result
