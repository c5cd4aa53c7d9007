"""A KV cache of another type: the same tokens however they were computed, close to those of float32, more pages."""

from collections.abc import Iterable, Iterator

import pytest

from jaxllm.engine.engine import Engine
from tests.e2e.driving import make_engine, request, run

COUNT = 12
OPTIONS = {"max_num_seqs": 8, "max_model_len": 512, "kv_cache_memory_bytes": 4 << 20}


def tokens(engine: Engine, prompts: list[list[int]], indices: Iterable[int]) -> dict[str, list[int]]:
    """Greedy ones and seeded ones."""
    requests = [request(i, prompts[i], temperature=i % 2, seed=i, max_tokens=12, ignore_eos=True) for i in indices]
    return {name: answer.token_ids for name, answer in run(engine, requests).items()}


@pytest.fixture(scope="module", params=["fp8", pytest.param("int8", marks=pytest.mark.exhaustive)])
def narrow(request: pytest.FixtureRequest) -> Iterator[Engine]:
    engine = make_engine(kv_cache_dtype=request.param, **OPTIONS, enforce_eager=False)
    yield engine
    engine.close()


@pytest.fixture(scope="module")
def together(narrow: Engine, prompts: list[list[int]]) -> dict[str, list[int]]:
    """All requests in one batch."""
    return tokens(narrow, prompts, range(COUNT))


def test_the_same_tokens_alone_and_with_a_prefix_from_the_cache(
    narrow: Engine, prompts: list[list[int]], together: dict[str, list[int]]
) -> None:
    assert narrow.info.kernels["attention"].name == "cpu"
    hits = narrow.pages.prefix_hits
    assert tokens(narrow, prompts, range(COUNT)) == together
    assert narrow.pages.prefix_hits > hits
    for index in range(0, COUNT, 3):
        narrow.reset_prefix_cache()
        assert tokens(narrow, prompts, [index]) == {str(index): together[str(index)]}


def test_more_pages_in_the_same_memory(narrow: Engine) -> None:
    """Of 32 numbers of a head in float32, in 8 bits; a scale adds four bytes to them."""
    each = {"int8": 36, "float8_e4m3fn": 32}[narrow.info.kv_cache_dtype]
    assert narrow.info.num_pages == OPTIONS["kv_cache_memory_bytes"] // (4 * 16 * 2 * 4 * each)


@pytest.mark.slow
def test_chunks_and_preemption(narrow: Engine, prompts: list[list[int]], together: dict[str, list[int]]) -> None:
    """A token sees the same of its own chunk as of an earlier one, or of the cache."""
    kind = {"int8": "int8", "float8_e4m3fn": "fp8"}[narrow.info.kv_cache_dtype]
    small = {"max_num_seqs": 8, "max_model_len": 208, "max_num_batched_tokens": 24, "num_gpu_blocks_override": 14}
    engine = make_engine(kv_cache_dtype=kind, **small)
    try:
        assert tokens(engine, prompts, range(COUNT)) == together
        assert engine.scheduler.num_preemptions > 0
    finally:
        engine.close()
