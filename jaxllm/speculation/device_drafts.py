"""Drafts that the device has made, kept until the step that they are for."""

import numpy as np
import numpy.typing as npt

from jaxllm.requests.request import Request
from jaxllm.scheduler.table import RequestTable

Int32Array = npt.NDArray[np.int32]

LONGEST_PAUSE = 63
"""Steps without drafts at most between two tries, while drafts turn out not to be worth it."""


class DeviceDrafts:
    """A `Drafter` whose guesses came back with the last step, at most `most` for each slot."""

    def __init__(self, num_slots: int, most: int) -> None:
        self._ids = np.zeros((num_slots, most), np.int32)
        self._counts = np.zeros(num_slots, np.int32)
        self._places = np.full(num_slots, -1, np.int32)  # where in their requests the first of these would be
        self._generations = np.full(num_slots, -1, np.int64)

    def take(self, table: RequestTable, slots: Int32Array, places: Int32Array, drafts: Int32Array) -> None:
        """Keep drafts [n, K] of slots, int32 [n], the first of which are for `places` in their requests, int32 [n]."""
        self._ids[slots, : drafts.shape[1]] = drafts
        self._counts[slots] = drafts.shape[1]
        self._places[slots] = places
        self._generations[slots] = table.generation[slots]

    def propose(self, table: RequestTable, slots: Int32Array, limits: Int32Array) -> tuple[Int32Array, Int32Array]:
        """See `Drafter.propose`."""
        fits = self._places[slots] == table.num_tokens[slots]
        fits &= self._generations[slots] == table.generation[slots]
        counts = np.where(fits, np.minimum(limits, self._counts[slots]), 0).astype(np.int32)
        is_taken = np.arange(self._ids.shape[1]) < counts[:, None]
        return counts, self._ids[slots][is_taken]

    def forget(self, request: Request) -> None:
        """Nothing is kept that another request could get."""


class DraftPace:
    """In which steps the device makes drafts: in all while they are used, in ever fewer while they are not."""

    def __init__(self) -> None:
        self._pause = self._left = 0

    def wants_drafts(self) -> bool:
        """Whether the step that is planned now should make some."""
        if self._left:
            self._left -= 1
            return False
        return True

    def note(self, *, used: bool) -> None:
        """Drafts were there for a step, and it has used some or none."""
        self._pause = 0 if used else min(2 * self._pause + 1, LONGEST_PAUSE)
        self._left = self._pause
