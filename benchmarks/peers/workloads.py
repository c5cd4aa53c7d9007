"""The workloads both engines run, and how a run is measured. Standard library only: the peer imports it too."""

import itertools
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

FIRST_TOKEN_ID = 3
"""Smaller ids are special."""


@dataclass(frozen=True)
class Workload:
    """Requests that all arrive at once, greedy and of fixed length.

    `shared_tokens` of each prompt are the same for all; prefix caching is on for that workload only. With `cycle`, a
    prompt is a text of so many tokens in order, over and over, in place of random tokens.
    """

    name: str
    requests: int
    prompt_tokens: int
    output_tokens: int
    shared_tokens: int = 0
    cycle: int = 0

    def __str__(self) -> str:
        shared = f", {self.shared_tokens} shared" if self.shared_tokens else ""
        return f"{self.requests} x ({self.prompt_tokens} in{shared}, {self.output_tokens} out)"

    def prompts(self, vocab_size: int, seed: int) -> list[list[int]]:
        """Random token ids; another seed gives prompts that share nothing with these."""
        rng = random.Random(seed)
        if self.cycle:
            texts = vocab_size // 2 // self.cycle
            starts = [self.cycle * rng.randrange(texts) for _ in range(self.requests)]
            return [[start + place % self.cycle for place in range(self.prompt_tokens)] for start in starts]

        def tokens(count: int) -> list[int]:
            return [rng.randrange(FIRST_TOKEN_ID, vocab_size) for _ in range(count)]

        shared = tokens(self.shared_tokens)
        return [shared + tokens(self.prompt_tokens - self.shared_tokens) for _ in range(self.requests)]


WORKLOADS = (
    Workload("single", 1, 32, 64),
    Workload("eight", 8, 128, 64),
    Workload("many", 32, 128, 64),
    Workload("prefix", 64, 544, 32, shared_tokens=512),
    Workload("long", 4, 2000, 64),
)


@dataclass(frozen=True)
class Measurement:
    """One run. Milliseconds are medians, of requests for `ttft_ms` and of tokens for `itl_ms`."""

    output_tokens: int
    output_tokens_per_s: float
    ttft_ms: float
    itl_ms: float


class SteppedEngine(Protocol):
    """An engine as the measurement sees it."""

    def add(self, request_id: str, prompt: list[int], output_tokens: int) -> None:
        """Queue a greedy request that ignores its end token."""

    def step(self) -> Sequence[tuple[str, int]]:
        """Run one step; the requests with new tokens, and how many tokens each has by now."""
        ...

    def busy(self) -> bool:
        """Whether anything is left to do."""
        ...


def measure(engine: SteppedEngine, workload: Workload, vocab_size: int, seed: int) -> Measurement:
    """Run a workload to its end."""
    prompts = workload.prompts(vocab_size, seed)
    start = time.perf_counter()
    for index, prompt in enumerate(prompts):
        engine.add(f"{seed}-{index}", prompt, workload.output_tokens)
    arrivals: dict[str, list[float]] = {}
    counts: dict[str, int] = {}
    while engine.busy():
        news = engine.step()
        now = time.perf_counter()
        for request_id, tokens in news:
            new = tokens - counts.get(request_id, 0)
            counts[request_id] = tokens
            arrivals.setdefault(request_id, []).extend([now] * new)
    elapsed = time.perf_counter() - start
    gaps = [later - earlier for times in arrivals.values() for earlier, later in itertools.pairwise(times)]
    total = sum(counts.values())
    return Measurement(
        output_tokens=total,
        output_tokens_per_s=total / elapsed,
        ttft_ms=statistics.median(times[0] - start for times in arrivals.values()) * 1e3,
        itl_ms=statistics.median(gaps) * 1e3,
    )
