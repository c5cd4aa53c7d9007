"""Requests of families with new kinds of caches have the same tokens in drawn traffic as alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from jaxllm.models.checkpoint.model_config import read_config
from jaxllm.models.kv_shape import CacheLayout
from tests.e2e.driving import make_engine, request, run
from tests.models.every_family import FAMILIES

LONGEST, PAGE, REQUESTS, ROUNDS = 112, 4, 6, 2
PREFIXES = (5, 12, 21, 33)
Drawn = tuple[list[int], dict[str, Any]]


def drawn(rng: np.random.Generator, prefixes: list[list[int]]) -> Drawn:
    """A prompt that begins as others do, half of them with a text for drafts; and greedy or seeded sampling."""
    prefix = prefixes[rng.integers(len(prefixes))]
    prompt = prefix[: rng.integers(1, len(prefix) + 1)] + rng.integers(0, 90, rng.integers(1, 12)).tolist()
    prompt += prompt[-6:] * 2 if rng.random() < 0.5 else []
    params: dict[str, Any] = {"max_tokens": int(rng.integers(8, 50)), "ignore_eos": True, "temperature": 0}
    if rng.random() < 0.5:
        params |= {"temperature": 0.9, "seed": int(rng.integers(1000)), "top_k": int(rng.choice([0, 5, 20]))}
    return prompt, params


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["dots3_note", "glm5_next", "mistral_large4", "qwen4_exp"])
def test_tokens_are_those_of_a_request_alone(tmp_path: Path, name: str) -> None:
    """With drafts, shared prefixes and preemption."""
    family = FAMILIES[name]
    family.save(tmp_path, **{"max_position_embeddings": LONGEST, **family.case.options})
    plan = CacheLayout("xla", "float32").plan(read_config(tmp_path), by_window=True)
    held = sum(min(LONGEST, window + 8) if window else LONGEST for window in plan.windows) // PAGE
    engine = make_engine(
        model=str(tmp_path),
        dtype="float32",
        max_model_len=LONGEST,
        max_num_seqs=4,
        max_num_batched_tokens=16,
        block_size=PAGE,
        num_gpu_blocks_override=1 + held * 5 // 4,
        spec_method="ngram",
        num_speculative_tokens=3,
    )
    rng = np.random.default_rng(7)
    prefixes = [rng.integers(0, 90, length).tolist() for length in PREFIXES]
    try:
        for number in range(ROUNDS):
            requests = {f"{number}-{index}": drawn(rng, prefixes) for index in range(REQUESTS)}
            together = run(engine, [request(key, prompt, **params) for key, (prompt, params) in requests.items()])
            for key, (prompt, params) in requests.items():
                alone = run(engine, [request(f"alone-{key}", prompt, **params)])[f"alone-{key}"]
                assert together[key].token_ids == alone.token_ids
        assert engine.scheduler.num_preemptions > 0
    finally:
        engine.close()
