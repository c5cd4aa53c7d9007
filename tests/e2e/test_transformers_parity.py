"""The engine's greedy tokens and log-probabilities are those of transformers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from jaxllm.engine.engine import Engine
from jaxllm.executor.sampler.listed import LISTED_ROWS
from tests.e2e.driving import request, run


@pytest.fixture(scope="module")
def reference(demo_folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(demo_folder, dtype=torch.float32).eval()


def log_softmax(reference: Any, token_ids: list[int]) -> np.ndarray:
    """Log-probabilities [tokens, V] of what follows each token."""
    with torch.no_grad():
        return np.asarray(torch.log_softmax(reference(torch.tensor([token_ids])).logits[0], dim=-1))


def test_greedy_tokens(engine: Engine, reference: Any, prompts: list[list[int]]) -> None:
    answers = run(engine, [request(i, prompt, temperature=0, max_tokens=48) for i, prompt in enumerate(prompts)])
    ends = set(engine.info.eos_token_ids)
    stopped = 0
    for index, prompt in enumerate(prompts):
        answer = answers[str(index)].token_ids
        # Greedy decoding is exactly this: each token is the most likely one after all before it.
        expected = log_softmax(reference, prompt + answer)[len(prompt) - 1 : -1].argmax(-1)
        assert answer == expected.tolist(), f"prompt {index}"
        assert len(answer) == 48 or answer[-1] in ends
        assert not ends & set(answer[:-1])
        stopped += answers[str(index)].finish_reason == "stop"
    assert stopped > 100


def test_generate_agrees_with_the_step_by_step_check(engine: Engine, reference: Any, prompts: list[list[int]]) -> None:
    for prompt in prompts[1:4]:
        (answer,) = run(engine, [request("one", prompt, temperature=0, max_tokens=32)]).values()
        generated = reference.generate(torch.tensor([prompt]), max_new_tokens=32, do_sample=False)
        assert answer.token_ids == generated[0, len(prompt) :].tolist()


def test_logprobs(engine: Engine, reference: Any, prompts: list[list[int]]) -> None:
    chosen = [prompts[i] for i in (1, 2, 3, 5, 14)]
    requests = [
        request(i, prompt, temperature=1.0, seed=i, max_tokens=8, logprobs=5, prompt_logprobs=3)
        for i, prompt in enumerate(chosen)
    ]
    answers = run(engine, requests)
    for index, prompt in enumerate(chosen):
        answer = answers[str(index)]
        expected = log_softmax(reference, prompt + answer.token_ids)
        assert answer.prompt_logprobs is not None
        assert answer.prompt_logprobs[0] is None
        places = [*answer.prompt_logprobs[1:], *answer.logprobs]
        assert len(places) == len(prompt) + len(answer.token_ids) - 1
        for position, (given, token_id) in enumerate(zip(places, (prompt + answer.token_ids)[1:], strict=True)):
            row = expected[position]
            assert given is not None
            assert given.token_id == token_id
            assert given.logprob == pytest.approx(float(row[token_id]), abs=1e-4)
            assert given.rank == 1 + int((row > row[token_id]).sum())
            best = np.sort(row)[::-1][: len(given.top_ids)]
            np.testing.assert_allclose(given.top_logprobs, best, atol=1e-4)
            np.testing.assert_allclose(row[given.top_ids], best, atol=1e-4)


LISTED = [7, 900, 5, 41, 5, 0]
KINDS: list[dict[str, Any]] = [
    {"temperature": 0},
    {"temperature": 1.7, "top_k": 40, "repetition_penalty": 1.3, "presence_penalty": 0.7},
    {"logit_bias": {5: 50.0, 41: 50.0}, "min_tokens": 3},
    {"structured_outputs": {"regex": "[a-z]{3,9}( [a-z]{3,9}){2,40}"}},
    {"logprobs": 3},
    {"allowed_token_ids": [5, 6, 7, 8, 41], "ignore_eos": True},
]


def test_listed_tokens(engine: Engine, reference: Any, prompts: list[list[int]]) -> None:
    """Their logprobs are of the model's own logits, in more rows than one call of the executable takes."""
    count = LISTED_ROWS + 9
    assert engine.info.max_num_seqs >= count + 4
    chosen = [prompts[1 + index % 14] for index in range(count)]
    requests = [
        request(i, prompt, **{"seed": i, "max_tokens": 6, "logprob_token_ids": LISTED} | KINDS[i % len(KINDS)])
        for i, prompt in enumerate(chosen)
    ]
    others = [request(f"other {i}", prompt, logprobs=i or None) for i, prompt in enumerate(prompts[:4])]
    answers = run(engine, requests[:30] + others + requests[30:])
    for index, prompt in enumerate(chosen):
        answer = answers[str(index)]
        expected = log_softmax(reference, prompt + answer.token_ids)[len(prompt) - 1 :]
        assert len(answer.logprobs) == len(answer.token_ids) > 0
        for given, token_id, row in zip(answer.logprobs, answer.token_ids, expected, strict=False):
            assert given.token_id == token_id
            assert given.logprob == pytest.approx(float(row[token_id]), abs=5e-4)
            assert given.rank == 1 + int((row > row[token_id]).sum())
            assert given.top_ids == [7, 900, 5, 41, 0]
            np.testing.assert_allclose(given.top_logprobs, row[given.top_ids], atol=5e-4, rtol=5e-5)
    assert [len(answers[f"other {i}"].logprobs[0].top_ids) for i in range(1, 4)] == [1, 2, 3]
    assert answers["other 0"].logprobs == []


def test_prompt_logprobs_of_a_long_prompt_and_of_one_token(engine: Engine, reference: Any) -> None:
    long = (np.arange(700) * 37 % 900 + 10).tolist()
    answers = run(
        engine, [request("long", long, max_tokens=1, prompt_logprobs=0), request("one", [5], prompt_logprobs=1)]
    )
    given = answers["long"].prompt_logprobs
    assert given is not None
    expected = log_softmax(reference, long)
    values = [item.logprob for item in given[1:] if item is not None]
    np.testing.assert_allclose(values, [expected[i, long[i + 1]] for i in range(699)], atol=5e-4, rtol=5e-5)
    assert answers["one"].prompt_logprobs == [None]
