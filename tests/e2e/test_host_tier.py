"""The host tier: tokens do not depend on it, and prefixes that have left the devices come back from it."""

import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from jaxllm.engine.engine import Engine
from tests.e2e.driving import make_engine, request, run

OPTIONS: dict[str, Any] = {"block_size": 16, "max_num_seqs": 4, "max_num_batched_tokens": 64, "max_model_len": 256}
PARAMS: dict[str, Any] = {"temperature": 0, "max_tokens": 20, "ignore_eos": True}


def prompts(count: int = 6) -> list[list[int]]:
    """Of 60 to 200 tokens; the second half begin like those of the first."""
    rng = np.random.default_rng(0)
    first = [rng.integers(3, 250, int(length)).tolist() for length in rng.integers(60, 170, count)]
    return first + [each[:50] + rng.integers(3, 250, 30).tolist() for each in first]


def tokens_of(engine: Engine, name: str = "") -> list[list[int]]:
    requests = [request(f"{name}{index}", prompt, **PARAMS) for index, prompt in enumerate(prompts())]
    answers = run(engine, requests)
    return [answers[f"{name}{index}"].token_ids for index in range(len(requests))]


@pytest.fixture(scope="module")
def expected() -> Iterator[list[list[int]]]:
    engine = make_engine(**OPTIONS, num_gpu_blocks_override=200)
    yield tokens_of(engine)
    engine.close()


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """So few pages that nothing stays, and a host with room for all of them."""
    engine = make_engine(
        **OPTIONS, num_gpu_blocks_override=20, kv_offloading_size=0.05, kv_offloading="always", enforce_eager=False
    )
    yield engine
    engine.close()


def settle(engine: Engine) -> None:
    """Let what is on its way arrive."""
    tier = engine._host_tier
    assert tier is not None
    for _ in range(200):
        tier.on_step_begin()
        tier.on_step_end(is_idle=True)
        if not tier._transfers._stores.num_left and not len(tier._tier.stores):
            break
        time.sleep(0.005)


def test_tokens_are_the_same_and_prefixes_come_back(engine: Engine, expected: list[list[int]]) -> None:
    assert tokens_of(engine) == expected
    settle(engine)
    before = engine.stats().offload
    assert tokens_of(engine, "again") == expected
    after = engine.stats().offload
    assert after.hits > before.hits + 300
    assert after.failures == 0
    assert engine.stats().num_compilations == 0
