"""Prompt lookup: what followed the last tokens of a request when they were there before.

After Saxena, Prompt Lookup Decoding (2023). The longest sequence counts, of `max_tokens` to `min_tokens` last tokens,
and of its places the last one: a text repeats what it has just said rather than what it said first.
"""

import numpy as np
import numpy.typing as npt

from jaxllm.requests.request import Request
from jaxllm.scheduler.table import RequestTable
from jaxllm.speculation.text_index import HEADS, extend_and_look_up

Int32Array = npt.NDArray[np.int32]


class NgramDrafter:
    """Looks in each request's own prompt and output.

    It keeps an index of each slot, of 4 bytes for each token and 16 KiB, which it extends by the tokens that are new:
    what a step costs does not depend on how long the texts are.
    """

    def __init__(self, num_slots: int, max_model_len: int, min_tokens: int, max_tokens: int) -> None:
        self._min_tokens, self._max_tokens = min_tokens, max_tokens
        self._heads: Int32Array = np.full((num_slots, HEADS), -1, np.int32)
        self._before: Int32Array = np.zeros((num_slots, max_model_len), np.int32)
        self._indexed: Int32Array = np.zeros(num_slots, np.int32)
        self._generations: npt.NDArray[np.int64] = np.full(num_slots, -1, np.int64)
        # Compile now, which takes a second, and not in a step.
        self.propose(RequestTable(1, 1, 1), np.zeros(1, np.int32), np.zeros(1, np.int32))
        self._generations[:] = -1

    def propose(self, table: RequestTable, slots: Int32Array, limits: Int32Array) -> tuple[Int32Array, Int32Array]:
        """See `Drafter.propose`."""
        counts, ids, _ = self.matched(table, slots, limits)
        return counts, ids

    def matched(
        self, table: RequestTable, slots: Int32Array, limits: Int32Array
    ) -> tuple[Int32Array, Int32Array, Int32Array]:
        """Drafts, and how many last tokens of each slot were there before: int32 [n], 0 where there are no drafts."""
        changed = slots[self._generations[slots] != table.generation[slots]]
        if len(changed):
            self._heads[changed] = -1
            self._indexed[changed] = 0
            self._generations[changed] = table.generation[changed]
        counts, matched = np.zeros(len(slots), np.int32), np.zeros(len(slots), np.int32)
        drafts = np.zeros(int(limits.sum()), np.int32)
        total = extend_and_look_up(
            table.token_ids, table.num_tokens, slots, limits, self._heads, self._before, self._indexed,
            self._min_tokens, self._max_tokens, counts, drafts, matched,
        )  # fmt: skip
        return counts, drafts[:total], matched

    def forget(self, request: Request) -> None:
        """See `Drafter.forget`."""
