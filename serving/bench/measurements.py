"""The parts of its answers that a load test keeps.

It keeps seven numbers per request, at most `MOST_GAPS` gaps between tokens, and a count of output tokens for every
quarter of a second, so that a test of days fits the memory. Texts and single gaps are kept on request only.
"""

from array import array
from collections.abc import Sequence

import numpy as np

from jaxllm.serving.bench.client import LoadResult

MOST_GAPS = 8 * 2**20
"""Gaps between tokens that are kept, as floats of 8 bytes; of more, every second, fourth, ... answer's."""
BUCKETS_PER_SECOND = 4
MOST_ERRORS = 10
"""Errors whose text is kept."""


class Gaps:
    """A sample of the gaps between tokens (s): all of them, until there are too many."""

    def __init__(self, most: int = MOST_GAPS) -> None:
        self.values = array("d")
        self._most = most
        self._stride = 1
        self._answers = 0
        self._ends: list[int] = []

    def add(self, itls: Sequence[float]) -> None:
        """Take an answer's gaps. Every second answer kept so far is dropped when there are too many."""
        if self._answers % self._stride == 0:
            self.values.extend(itls)
            self._ends.append(len(self.values))
        self._answers += 1
        while len(self.values) > self._most and len(self._ends) > 1:
            self._thin()

    def _thin(self) -> None:
        starts = [0, *self._ends[:-1]]
        kept = array("d")
        ends = []
        for start, end in zip(starts[::2], self._ends[::2], strict=True):
            kept.extend(self.values[start:end])
            ends.append(len(kept))
        self.values, self._ends = kept, ends
        self._stride *= 2


class Measurements:
    """Collects answers. With `keep_answers`, also every one of them, by its number.

    Arrays hold a number for each answer without an error: times in seconds, as in `LoadResult`.
    """

    def __init__(self, *, keep_answers: bool = False) -> None:
        self.starts, self.ttfts, self.latencies, self.queue_times = (array("d") for _ in range(4))
        self.input_tokens, self.output_tokens, self.inputs = (array("q") for _ in range(3))
        self.gaps = Gaps()
        self.chunks = 0
        self.failed = 0
        self.errors: list[str] = []
        self.answers: dict[int, LoadResult] | None = {} if keep_answers else None
        self._first: float | None = None
        self._buckets: list[float] = []

    def add(self, index: int, answer: LoadResult) -> None:
        """Take the answer to the request with this number."""
        if self.answers is not None:
            self.answers[index] = answer
        if answer.error:
            self.failed += 1
            if len(self.errors) < MOST_ERRORS:
                self.errors.append(answer.error)
            return
        self.starts.append(answer.start)
        self.ttfts.append(answer.ttft)
        self.latencies.append(answer.latency)
        self.queue_times.append(answer.queue_time)
        self.input_tokens.append(answer.prompt_tokens)
        self.output_tokens.append(answer.output_tokens)
        self.inputs.append(answer.inputs)
        self.gaps.add(answer.itls)
        self._count_tokens(answer)

    def _count_tokens(self, answer: LoadResult) -> None:
        """Note when its tokens came, on the clock that starts with the first request."""
        times = answer.start + answer.ttft + np.cumsum([0.0, *answer.itls])
        self.chunks += len(times)
        if self._first is None or answer.start < self._first:
            # Answers come as they end: an earlier request may end later. Whole buckets, so that none has to be split.
            missing = 0 if self._first is None else int(np.ceil((self._first - answer.start) * BUCKETS_PER_SECOND))
            self._first = answer.start if self._first is None else self._first - missing / BUCKETS_PER_SECOND
            self._buckets[:0] = [0.0] * missing
        places = ((times - self._first) * BUCKETS_PER_SECOND).astype(int)
        self._buckets += [0.0] * (int(places[-1]) + 1 - len(self._buckets))
        # A chunk may hold several tokens.
        share = answer.output_tokens / len(times)
        for place, count in zip(*np.unique(places, return_counts=True), strict=True):
            self._buckets[place] += share * int(count)

    @property
    def completed(self) -> int:
        """Answers without an error."""
        return len(self.starts)

    @property
    def token_counts(self) -> np.ndarray:
        """Output tokens (float64) in each bucket of the time since the first request."""
        return np.asarray(self._buckets)

    @property
    def tpots(self) -> np.ndarray:
        """Seconds per output token after the first (float64); 0 for answers of one token."""
        tokens = np.asarray(self.output_tokens)
        seconds = np.asarray(self.latencies) - np.asarray(self.ttfts)
        return np.where(tokens > 1, seconds / np.maximum(tokens - 1, 1), 0.0)

    def busiest_second(self) -> float:
        """Most tokens in one second of the clock that starts with the first request."""
        counts = self.token_counts
        whole = np.pad(counts, (0, -len(counts) % BUCKETS_PER_SECOND))
        return float(whole.reshape(-1, BUCKETS_PER_SECOND).sum(axis=1).max(initial=0.0))

    def peak_concurrency(self) -> int:
        """Most requests under way at the same time; one that ends as another begins does not overlap it."""
        starts = np.asarray(self.starts)
        ends = starts + np.asarray(self.latencies)
        changes = np.repeat([1, -1], len(starts))
        times = np.concatenate([starts, ends])
        order = np.lexsort((changes, times))
        return int(np.cumsum(changes[order]).max(initial=0))
