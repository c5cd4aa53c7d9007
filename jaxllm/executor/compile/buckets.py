"""The few step shapes that exist. A step is padded to the smallest bucket that holds its tokens."""

from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True, order=True)
class Bucket:
    """Shape of one step executable: `tokens` places on the token axis and `rows` request places.

    A step has at most as many rows as tokens, and never more rows than requests may run, so the number of tokens
    alone decides the bucket.
    """

    tokens: int
    rows: int

    @cached_property
    def name(self) -> str:
        """Name of its step among an engine's programs."""
        return f"step_{self.tokens}"

    @cached_property
    def plain_name(self) -> str:
        """Name of its step without what makes drafts, where there is one."""
        return f"plain_step_{self.tokens}"

    def __str__(self) -> str:
        return f"{self.tokens} tokens x {self.rows} requests"


SMALLEST = 8
"""Smallest bucket of more than one token. Up to here a step costs little more than one of a single token, because
reading the weights takes most of it, while every bucket costs a compilation."""


GROWTH, GROWTH_WITHOUT_PADDING = 2, 4
"""From one bucket to the next: ordinarily, and where padding costs next to nothing."""


class Buckets:
    """One token, then 8, and so on by `growth` up to the token budget, and the budget itself."""

    def __init__(self, max_num_batched_tokens: int, max_num_seqs: int, growth: int = GROWTH) -> None:
        sizes = {1, max_num_batched_tokens}
        size = SMALLEST
        while size < max_num_batched_tokens:
            sizes.add(size)
            size *= growth
        self._sizes = sorted(sizes)
        self.all = tuple(Bucket(size, min(size, max_num_seqs)) for size in self._sizes)

    @property
    def largest(self) -> Bucket:
        """The bucket of a step that uses the whole token budget."""
        return self.all[-1]

    def of_decodes(self, num_rows: int) -> tuple[Bucket, ...]:
        """Those of steps in which up to `num_rows` rows have one token each."""
        return self.all[: bisect_left(self._sizes, num_rows) + 1]

    def fit(self, num_tokens: int) -> Bucket:
        """The smallest bucket of at least `num_tokens` tokens (1 to the token budget)."""
        return self.all[bisect_left(self._sizes, num_tokens)]

    def fit_among(self, num_tokens: int, usable: Callable[[Bucket], bool]) -> Bucket:
        """As `fit`, among those for which `usable` holds, as it must for the largest."""
        return next(bucket for bucket in self.all[bisect_left(self._sizes, num_tokens) :] if usable(bucket))
