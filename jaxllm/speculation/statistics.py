"""The account of drafts: how many there were, and how many were right."""

from itertools import zip_longest

import msgspec
import numpy as np
import numpy.typing as npt

Int32Array = npt.NDArray[np.int32]


class DraftCounts(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """Totals since an engine started.

    `num_drafts` counts the steps of requests that brought drafts, `num_draft_tokens` these and `num_accepted_tokens`
    those of them that were right; `accepted_by_place` has the latter by place, the first draft after a token first.
    """

    num_drafts: int = 0
    num_draft_tokens: int = 0
    num_accepted_tokens: int = 0
    accepted_by_place: tuple[int, ...] = ()

    @staticmethod
    def of_step(num_drafts: Int32Array, num_accepted: Int32Array) -> "DraftCounts":
        """Rows of a step that have drafts: how many each, and how many of them were right, both int32 [n]."""
        places = np.arange(num_drafts.max(initial=0))
        by_place = np.count_nonzero(places < num_accepted[:, None], axis=0)
        return DraftCounts(len(num_drafts), int(num_drafts.sum()), int(num_accepted.sum()), tuple(by_place.tolist()))

    def plus(self, other: "DraftCounts") -> "DraftCounts":
        """The sum of both."""
        by_place = zip_longest(self.accepted_by_place, other.accepted_by_place, fillvalue=0)
        return DraftCounts(
            self.num_drafts + other.num_drafts,
            self.num_draft_tokens + other.num_draft_tokens,
            self.num_accepted_tokens + other.num_accepted_tokens,
            tuple(map(sum, by_place)),
        )

    def since(self, before: "DraftCounts") -> "DraftCounts":
        """What was counted after `before`, of the same engine; all of it, where the engine was started again."""
        if self.num_draft_tokens < before.num_draft_tokens:
            return self
        by_place = zip_longest(self.accepted_by_place, before.accepted_by_place, fillvalue=0)
        return DraftCounts(
            self.num_drafts - before.num_drafts,
            self.num_draft_tokens - before.num_draft_tokens,
            self.num_accepted_tokens - before.num_accepted_tokens,
            tuple(now - then for now, then in by_place),
        )
