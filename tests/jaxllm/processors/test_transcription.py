"""The rules of transcriptions, compared with transformers' processors on random logits."""

from typing import Any

import jax
import numpy as np
import pytest
import torch
from transformers import GenerationConfig
from transformers.generation.logits_process import (
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
    WhisperTimeStampLogitsProcessor,
)

from jaxllm.processors.transcription import TranscriptionRules
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.requests.transcription_rules import MOST_SUPPRESSED, NAME

SIZE, END, NONE, FIRST = 120, 60, 79, 80
"""Tokens: 60 of text, 20 special ones, the first of them the end, and 40 timestamps."""
SUPPRESSED, SUPPRESSED_FIRST = [3, 5, 61, 62], [1, END]
BEGIN = 3
TIMES = {"first": FIRST, "end": END, "none": NONE}


def params(**rules: Any) -> SamplingParams:
    return SamplingParams(extra_args={NAME: rules})


def oracle(most_initial: int | None, *, timestamps: bool) -> Any:
    config = GenerationConfig(eos_token_id=END, bos_token_id=END)
    config.no_timestamps_token_id, config.max_initial_timestamp_index = NONE, most_initial
    found = [
        SuppressTokensAtBeginLogitsProcessor(SUPPRESSED_FIRST, BEGIN),
        SuppressTokensLogitsProcessor(SUPPRESSED),
        *([WhisperTimeStampLogitsProcessor(config, BEGIN)] if timestamps else []),
    ]

    def process(output: list[int], logits: np.ndarray) -> np.ndarray:
        scores, ids = torch.from_numpy(logits[None].copy()), torch.tensor([[70, 71, 72, *output]])
        for each in found:
            scores = each(ids, scores)
        return scores[0].numpy()

    return process


@pytest.mark.parametrize("most_initial", [None, 0, 5])
@pytest.mark.parametrize("timestamps", [True, False])
def test_what_may_follow_is_as_in_transformers(most_initial: int | None, timestamps: bool) -> None:
    """Many texts at once; each goes on with a token that is allowed."""
    rows, steps = 32, 24
    times = {**TIMES, "most_initial": most_initial} if timestamps else None
    given = params(suppressed=SUPPRESSED, suppressed_first=SUPPRESSED_FIRST, timestamps=times)
    rules: Any = TranscriptionRules(None, SIZE)  # type: ignore[arg-type]
    apply, process = jax.jit(rules.apply), oracle(most_initial, timestamps=timestamps)
    random, outputs = np.random.default_rng(most_initial), [list[int]() for _ in range(rows)]
    seen = set()
    for _ in range(steps):
        logits = random.normal(scale=3.0, size=(rows, SIZE)).astype(np.float32)
        # Timestamps are rarely likely alone, and together now and then.
        logits[:, FIRST:] += random.choice([-6.0, -1.0, 3.0], size=(rows, 1))
        numbers = np.array([rules.parameters_after(given, output) for output in outputs])
        found = np.asarray(apply(logits, numbers))
        for row, output in enumerate(outputs):
            np.testing.assert_allclose(found[row], process(output, logits[row]), atol=1e-5)
            allowed = np.flatnonzero(found[row] > -np.inf)
            seen.add((allowed[0] >= FIRST, len(allowed)))
            token = int(random.choice(allowed))
            # Texts go on after their ends, as far as rules are concerned.
            output.append(token if token != END else FIRST + 39 if timestamps else 9)
    assert len(seen) > (20 if timestamps else 1)


def test_the_first_numbers_are_those_of_an_empty_output() -> None:
    rules: Any = TranscriptionRules(None, SIZE)  # type: ignore[arg-type]
    given = params(suppressed=[4], timestamps=TIMES)
    np.testing.assert_array_equal(rules.parameters(given), rules.parameters_after(given, []))
    assert rules.parameters(SamplingParams()) is None
    assert rules.parameters(SamplingParams(extra_args={"other": 1})) is None


@pytest.mark.parametrize(
    "given",
    [
        5,
        {"suppresed": [1]},
        {"suppressed": [-1]},
        {"suppressed": [2**31]},
        {"suppressed": list(range(MOST_SUPPRESSED)), "suppressed_first": [1]},
        {"timestamps": {"first": 0, "end": 1, "none": 2}},
        {"timestamps": {"first": 5}},
    ],
)
def test_rules_that_are_none_are_errors(given: Any) -> None:
    with pytest.raises(ValueError, match=r"transcription|suppressed tokens"):
        TranscriptionRules.validate_params(SamplingParams(extra_args={NAME: given}))
