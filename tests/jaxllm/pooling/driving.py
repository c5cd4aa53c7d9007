"""Pooling engines as tests use them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from jaxllm.config import EngineConfig
from jaxllm.load import load_engine
from jaxllm.pooling.engine import PoolingEngine
from jaxllm.pooling.params import PoolingParams
from jaxllm.pooling.request import PoolingRequest

QUICK: dict[str, Any] = {
    "optimization_level": 0,
    "strict_compilation": True,
    "enforce_eager": True,
    "compilation_cache_dir": "",
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
}
CACHED: dict[str, Any] = {"compilation_cache_dir": None}
"""For engines in processes of their own: without a cache each would compile the kernels of the CPU, seconds each."""


@contextmanager
def engine_of(model: Path | str, **options: Any) -> Iterator[PoolingEngine]:
    """The engine of a model; shapes are compiled when they are met."""
    engine = load_engine(EngineConfig.from_options({"model": str(model), **QUICK, **options}))
    assert isinstance(engine, PoolingEngine)
    try:
        yield engine
    finally:
        engine.close()


def request(
    name: str, token_ids: Sequence[int], params: PoolingParams | None = None, second_text: int | None = None
) -> PoolingRequest:
    """A request for these tokens."""
    ids = np.array(token_ids, np.int32)
    return PoolingRequest(
        request_id=name, prompt_token_ids=ids, params=params or PoolingParams(), second_text=second_text
    )


def run(engine: PoolingEngine, requests: Sequence[PoolingRequest]) -> list[np.ndarray]:
    """Results of requests, all added at once."""
    for each in requests:
        engine.add_request(each)
    found: dict[str, Any] = {}
    while engine.has_unfinished_requests():
        found.update((output.request_id, output.data) for output in engine.step())
    return [found[each.request_id] for each in requests]


def pool(
    engine: PoolingEngine, texts: Sequence[Sequence[int]], params: PoolingParams | None = None
) -> list[np.ndarray]:
    """Results of texts."""
    return run(engine, [request(str(index), text, params) for index, text in enumerate(texts)])
