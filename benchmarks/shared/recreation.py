"""The memory of a process in which `LLM` is made and deleted again and again."""

import gc
from collections.abc import Sequence
from typing import Any

import psutil

from jaxllm import LLM, SamplingParams


def recreate(count: int, **options: Any) -> list[float]:
    """Resident memory in MiB after each of `count` engines was made, used and deleted."""
    process, sizes = psutil.Process(), list[float]()
    for _ in range(count):
        llm = LLM("demo", **options)
        llm.generate(["Once upon a time", "What is 2 + 3?"], SamplingParams(max_tokens=8), use_tqdm=False)
        del llm
        gc.collect()
        sizes.append(process.memory_info().rss / 2**20)
    return sizes


def growth_per_recreation(sizes: Sequence[float]) -> float:
    """MiB that each engine after the first one left behind, on average."""
    return (sizes[-1] - sizes[0]) / max(1, len(sizes) - 1)
