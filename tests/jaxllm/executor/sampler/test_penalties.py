"""Penalties and bias against formulas written down elsewhere."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import RepetitionPenaltyLogitsProcessor

from jaxllm.executor.sampler.penalties import process
from jaxllm.executor.sampler.rows import SamplingRows
from tests.jaxllm.executor.sampler.cases import make_state, packed_rows, penalised

ROWS, VOCAB = 6, 70
RANDOM = np.random.default_rng(3)
LOGITS = (RANDOM.normal(size=(ROWS, VOCAB)) * 4).astype(np.float32)
COUNTS = (RANDOM.integers(0, 5, (ROWS, VOCAB)) * (RANDOM.random((ROWS, VOCAB)) < 0.4)).astype(np.int32)
SEEN = RANDOM.random((ROWS, VOCAB)) < 0.3
BIAS = np.where(RANDOM.random((ROWS, VOCAB)) < 0.3, -np.inf, RANDOM.normal(size=(ROWS, VOCAB))).astype(np.float32)
STATE = make_state(COUNTS, SEEN, BIAS)


@jax.jit
def processed(ints: jax.Array, floats: jax.Array) -> jax.Array:
    logits = jnp.asarray(LOGITS)
    return process(logits, SamplingRows.unpack(ints, floats), STATE, lambda: logits)


@settings(max_examples=40, deadline=None)
@given(
    presence=st.floats(-2, 2),
    frequency=st.floats(-2, 2),
    repetition=st.floats(0.1, 10),
    slots=st.permutations(range(ROWS)),
)
def test_penalties_follow_their_definitions(
    presence: float, frequency: float, repetition: float, slots: list[int]
) -> None:
    values: dict[str, Any] = {"presence": presence, "frequency": frequency, "repetition": repetition}
    found = processed(*packed_rows(ROWS, slot=np.array(slots), **values))
    wanted = [penalised(row, COUNTS[slot], SEEN[slot], **values) for row, slot in zip(LOGITS, slots, strict=True)]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_repetition_penalty_equals_hugging_face() -> None:
    found = processed(*packed_rows(ROWS, slot=np.arange(ROWS), repetition=1.7))
    for row in range(ROWS):
        tokens = np.flatnonzero(SEEN[row] | (COUNTS[row] > 0))
        wanted = RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor(tokens[None]), torch.tensor(LOGITS[row : row + 1]))
        np.testing.assert_allclose(found[row], wanted[0].numpy(), rtol=1e-6)


def test_bias_comes_before_penalties() -> None:
    found = processed(*packed_rows(ROWS, slot=np.arange(ROWS), bias=True, repetition=2.0, presence=0.5))
    wanted = [penalised(LOGITS[row] + BIAS[row], COUNTS[row], SEEN[row], 0.5, 0.0, 2.0) for row in range(ROWS)]
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_rows_that_want_nothing_stay_as_they_are() -> None:
    np.testing.assert_array_equal(processed(*packed_rows(ROWS, slot=np.arange(ROWS))), LOGITS)
    mixed = processed(*packed_rows(ROWS, slot=np.arange(ROWS), presence=np.array([0, 1, 0, 0, 0, 0])))
    np.testing.assert_array_equal(np.delete(mixed, 1, axis=0), np.delete(LOGITS, 1, axis=0))
