"""Search for block sizes: from a start, one size at a time is doubled or halved while that helps."""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from jaxllm.pallas_kernels.paged_attention.tpu.common import Blocks

FIELDS = {"decode": ("keys", "slots"), "prefill": ("queries", "chunk", "keys")}
"""What is tried for each kernel, what matters most first. Decode cuts contexts into the chunks of prefill."""

LEAST = {"keys": 128, "chunk": 128, "slots": 2, "queries": 16}
MOST = {"keys": 4096, "chunk": 2048, "slots": 8, "queries": 1024}

ENOUGH = 0.995
"""Blocks must take at most this part of the best time so far to be taken for better: else the start stays."""


def search(
    kernel: str, start: Blocks, page_size: int, cost: Callable[[Blocks], float | None], tries: int
) -> tuple[Blocks, float]:
    """The best blocks found with at most `tries` calls of `cost` (None: they do not compile), and their cost.

    Raises:
        RuntimeError: the start itself does not compile.
    """
    found = cost(start)
    if found is None:
        raise RuntimeError(f"{start} does not compile")
    best, costs = start, {start: found}
    while True:
        before = best
        for field in FIELDS[kernel]:
            for larger in (True, False):
                while len(costs) < tries:
                    other = next(neighbours(best, field, page_size, larger=larger), None)
                    if other is None or other in costs:
                        break
                    found = cost(other)
                    costs[other] = math.inf if found is None else found
                    if costs[other] > ENOUGH * costs[best]:
                        break
                    best = other
        if best == before:
            return best, costs[best]


def neighbours(blocks: Blocks, field: str, page_size: int, *, larger: bool) -> Iterator[Blocks]:
    """`blocks` with one size doubled or halved, if the kernels can take that."""
    value = getattr(blocks, field)
    value = 2 * value if larger else value // 2
    changed = replace(blocks, **{field: value})
    whole = changed.keys % math.lcm(changed.chunk, page_size) == 0
    if LEAST[field] <= value <= MOST[field] and whole:
        yield changed
