"""The same request gives the same tokens, whatever else is in the batch and however it was computed."""

from collections.abc import Iterable

import pytest

from jaxllm.engine.engine import Engine
from jaxllm.requests.request import Request
from tests.e2e.driving import make_engine, request, run
from tests.thinned import thinned

NUM_REQUESTS = 64
ALONE = thinned(range(0, NUM_REQUESTS, 5), (index for index in range(NUM_REQUESTS) if index % 5))
"""Those that also run with nothing else in the batch; they have every kind, and prompts that are cut or joined."""


def requests(prompts: list[list[int]], indices: Iterable[int]) -> list[Request]:
    """Greedy ones, seeded ones, and seeded ones with filters and penalties."""
    kinds: list[dict[str, object]] = [
        {"temperature": 0},
        {"temperature": 1.0},
        {"temperature": 0.8, "top_k": 20, "top_p": 0.95, "min_p": 0.01},
        {"temperature": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.3, "repetition_penalty": 1.1},
    ]
    return [request(i, prompts[i], **kinds[i % 4], seed=1000 + i, max_tokens=24, ignore_eos=True) for i in indices]


def tokens(engine: Engine, prompts: list[list[int]], indices: Iterable[int]) -> dict[str, list[int]]:
    return {name: answer.token_ids for name, answer in run(engine, requests(prompts, indices)).items()}


@pytest.fixture(scope="module")
def together(engine: Engine, prompts: list[list[int]]) -> dict[str, list[int]]:
    """All requests in one batch, with the default chunks of 512 and a cold prefix cache."""
    assert engine.reset_prefix_cache()
    return tokens(engine, prompts, range(NUM_REQUESTS))


def test_alone(engine: Engine, prompts: list[list[int]], together: dict[str, list[int]]) -> None:
    for index in ALONE:
        engine.reset_prefix_cache()
        assert tokens(engine, prompts, [index]) == {str(index): together[str(index)]}


def test_warm_prefix_cache(engine: Engine, prompts: list[list[int]], together: dict[str, list[int]]) -> None:
    tokens(engine, prompts, range(NUM_REQUESTS))
    hits = engine.pages.prefix_hits
    assert tokens(engine, prompts, range(NUM_REQUESTS)) == together
    assert engine.pages.prefix_hits > hits + 1000


def test_other_order(engine: Engine, prompts: list[list[int]], together: dict[str, list[int]]) -> None:
    assert tokens(engine, prompts, reversed(range(NUM_REQUESTS))) == together


def test_chunks_of_16(prompts: list[list[int]], together: dict[str, list[int]]) -> None:
    engine = make_engine(max_num_batched_tokens=16, max_num_seqs=64)
    try:
        assert tokens(engine, prompts, range(NUM_REQUESTS)) == together
    finally:
        engine.close()


@pytest.mark.parametrize("prefix_caching", [True, False])
def test_preemption(prompts: list[list[int]], together: dict[str, list[int]], prefix_caching: bool) -> None:
    engine = make_engine(
        max_model_len=512,
        block_size=4,
        num_gpu_blocks_override=130,
        max_num_batched_tokens=64,
        max_num_seqs=16,
        enable_prefix_caching=prefix_caching,
    )
    try:
        some = range(NUM_REQUESTS // 3)
        assert tokens(engine, prompts, some) == {str(index): together[str(index)] for index in some}
        assert engine.scheduler.num_preemptions > 5
    finally:
        engine.close()


def logprobs(engine: Engine, prompts: list[list[int]], indices: Iterable[int]) -> dict[str, list[object]]:
    """All numbers that requests get: of outputs, alternatives and prompts."""
    asked = [
        request(
            i, prompts[i], max_tokens=12, ignore_eos=True, seed=i, temperature=i % 2, prompt_logprobs=1,
            **({"logprobs": 3} if i % 3 else {"logprob_token_ids": [5, 300, 7]}),
        )
        for i in indices
    ]  # fmt: skip
    return {name: [answer.logprobs, answer.prompt_logprobs] for name, answer in run(engine, asked).items()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_log_probabilities_to_the_last_bit(engine: Engine, prompts: list[list[int]], dtype: str) -> None:
    own = engine if dtype == "float32" else make_engine(max_num_seqs=64, max_num_batched_tokens=64, dtype=dtype)
    try:
        together = logprobs(own, prompts, range(40))
        for index in (index for index in ALONE if index < 40):
            assert logprobs(own, prompts, [index]) == {str(index): together[str(index)]}
    finally:
        if own is not engine:
            own.close()
