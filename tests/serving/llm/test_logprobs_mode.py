"""`logprobs_mode`, with engines of their own."""

from typing import Any

import numpy as np
import pytest

from jaxllm import LLM, BeamSearchParams, SamplingParams
from jaxllm.errors import RequestError

PROMPT = "Once upon a time"
OPTIONS: dict[str, Any] = {
    "enforce_eager": True,
    "optimization_level": 0,
    "max_model_len": 64,
    "max_num_seqs": 2,
    "max_num_batched_tokens": 16,
}


@pytest.mark.slow
def test_modes_of_logprobs() -> None:
    greedy = SamplingParams(temperature=0, max_tokens=1, logprobs=5, prompt_logprobs=2)
    with LLM("demo", logprobs_mode="processed_logprobs", **OPTIONS) as llm:
        normal, some, warm = llm.generate([PROMPT] * 3, [
            greedy,
            SamplingParams(temperature=1, max_tokens=1, logprobs=5, allowed_token_ids=[10, 20], seed=1),
            SamplingParams(temperature=0.5, top_k=3, max_tokens=1, logprobs=5, seed=1),
        ])  # fmt: skip
    with LLM("demo", logprobs_mode="raw_logits", **OPTIONS) as llm:
        (raw,) = llm.generate(PROMPT, greedy)
        with pytest.raises(RequestError, match="logprobs_mode='raw_logits', not raw_logprobs"):
            llm.beam_search([PROMPT], BeamSearchParams(beam_width=2, max_tokens=2))
    (ours,), (logits,), (allowed,), (warmer,) = (each.outputs[0].logprobs or [] for each in (normal, raw, some, warm))
    # Without anything that changes them they are the model's own, and a constant is between logits and logarithms.
    assert list(ours) == list(logits)
    own = np.array([each.logprob for each in ours.values()])
    np.testing.assert_allclose(np.diff(own), np.diff([each.logprob for each in logits.values()]), atol=1e-4)
    assert own[0] < 0 < logits[next(iter(logits))].logprob
    (_, place, *_), (_, same, *_) = raw.prompt_logprobs or [], normal.prompt_logprobs or []
    assert place is not None
    assert same is not None
    assert place.keys() == same.keys()
    # What was not allowed, or cut off, has no probability; the rest has all.
    kept = [each.logprob for each in allowed.values() if np.isfinite(each.logprob)]
    assert len(kept) == 2
    assert np.exp(kept).sum() == pytest.approx(1, abs=1e-5)
    left = {token: each.logprob for token, each in warmer.items() if np.isfinite(each.logprob)}
    assert len(left) == 3
    assert np.exp(list(left.values())).sum() == pytest.approx(1, abs=1e-5)
    own = np.array([ours[token].logprob for token in left])
    np.testing.assert_allclose(np.diff(list(left.values())), np.diff(own) / 0.5, atol=1e-4)
