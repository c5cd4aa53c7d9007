"""Drafts that the device has made, kept until the step that they are for."""

import numpy as np
import numpy.typing as npt

from jaxllm.requests.request import Request
from jaxllm.scheduler.plan import FIRST_UNKNOWN
from jaxllm.scheduler.table import RequestTable

Int32Array = npt.NDArray[np.int32]

LONGEST_PAUSE = 7
"""Steps without drafts at most between two tries, while drafts turn out not to be worth it."""

FIRST_REST, LONGEST_REST = 128, 4096
"""Steps in which what makes drafts does not even read the tokens, after tries at that pace were in vain, too."""

COMPARISON = 4
"""Steps of a rest that shows what a step takes without what makes drafts."""
FIRST_COMPARISON, LAST_COMPARISON, GROWTH = 16, 4096, 4
"""Uses of drafts before the first one, and so many times as many before each later one, up to a last number."""

FEW_TOKENS = 16 * COMPARISON
"""Generated tokens of a request that what makes drafts may have missed and still guess well: some comparisons."""


class DeviceDrafts:
    """A `Drafter` whose guesses came back with the last step, at most `most` for each slot."""

    def __init__(self, num_slots: int, most: int) -> None:
        self._ids = np.zeros((num_slots, most), np.int32)
        self._counts = np.zeros(num_slots, np.int32)
        self._places = np.full(num_slots, -1, np.int32)  # where in their requests the first of these would be
        self._generations = np.full(num_slots, -1, np.int64)
        self._missed = np.full(num_slots, -1, np.int64)
        self._num_missed = np.zeros(num_slots, np.int32)

    def miss(self, table: RequestTable, slots: Int32Array, num_tokens: Int32Array) -> None:
        """The device has not read so many tokens of these slots, int32 [n] each: of a prompt, if more than one."""
        before = np.where(self._missed[slots] == table.generation[slots], self._num_missed[slots], 0)
        self._missed[slots] = table.generation[slots]
        self._num_missed[slots] = before + np.where(num_tokens > 1, FEW_TOKENS + 1, num_tokens)

    def has_read(self, table: RequestTable, slots: Int32Array) -> npt.NDArray[np.bool_]:
        """Whether the device has read all tokens of each of these slots but a few, bool [n].

        Guesses for others would be bad ones.
        """
        read: npt.NDArray[np.bool_] = self._missed[slots] != table.generation[slots]
        return read | (self._num_missed[slots] <= FEW_TOKENS)

    def take(self, table: RequestTable, slots: Int32Array, places: Int32Array, drafts: Int32Array) -> None:
        """Keep drafts [n, K] of slots, int32 [n]; the first ones are for `places` in their requests, int32 [n]."""
        self._ids[slots, : drafts.shape[1]] = drafts
        self._counts[slots] = drafts.shape[1]
        self._places[slots] = places
        self._generations[slots] = table.generation[slots]

    def propose(self, table: RequestTable, slots: Int32Array, limits: Int32Array) -> tuple[Int32Array, Int32Array]:
        """See `Drafter.propose`."""
        fits = self._places[slots] == table.num_tokens[slots]
        fits &= (self._generations[slots] == table.generation[slots]) & self.has_read(table, slots)
        counts = np.where(fits, np.minimum(limits, self._counts[slots]), 0).astype(np.int32)
        is_taken = np.arange(self._ids.shape[1]) < counts[:, None]
        return counts, self._ids[slots][is_taken]

    def fill_in(self, slots: Int32Array, ids: Int32Array) -> None:
        """Put the drafts of `slots` into `ids`, int32 [n] each, where these stand for drafts the host did not know.

        The step that made them must be taken, and none after it.
        """
        rows = np.flatnonzero(ids <= FIRST_UNKNOWN)
        ids[rows] = self._ids[slots[rows], FIRST_UNKNOWN - ids[rows]]

    def forget(self, request: Request) -> None:
        """Nothing is kept that another request could get."""


def unknown_drafts(counts: Int32Array) -> Int32Array:
    """What stands for the first drafts of rows while only the device knows them, row after row; `counts` int32 [n]."""
    places = np.arange(counts.sum(), dtype=np.int32) - np.repeat(np.cumsum(counts, dtype=np.int32) - counts, counts)
    return FIRST_UNKNOWN - places


class DraftPace:
    """In which steps the device makes drafts: in all while they are used, in ever fewer while they are not.

    When even few are in vain, it rests: it makes none, and does not keep up with the text, which costs part of a step,
    too. Afterwards it tries again with requests that begin then. Each rest is twice as long as the one before, until
    a draft is used. While drafts are used, it rests for a moment now and then, so that the engine sees what a step
    takes without them; requests whose tokens it misses meanwhile keep their drafts.
    """

    def __init__(self) -> None:
        self._pause = self._left = self._uses = 0
        self._enough_uses = FIRST_COMPARISON
        self._rest, self._rest_left = FIRST_REST, 0
        self._rests = self._compares = self._awaits_note = False

    @property
    def is_resting(self) -> bool:
        """Whether the device did not read the text of the last step."""
        return self._rests

    def rests(self, *, begins: bool, reads_prompt: bool = False) -> bool:
        """Whether the device rests in the step that is planned now, in which some request begins or none.

        No step that reads a part of a prompt, beginning or not, is one for comparison.
        """
        if self._rests:
            self._rest_left -= 1
            if (self._rest_left < 0 and (begins or self._compares)) or (self._compares and reads_prompt):
                self._rests = self._compares = False
                self._pause = self._left = 0
        return self._rests

    def wants_drafts(self) -> bool:
        """Whether the step that is planned now should make some."""
        if self._left:
            self._left -= 1
            return False
        self._awaits_note = True
        return True

    def note(self, *, used: bool, knows_plain: bool = True) -> None:
        """Drafts were there for a step, and it has used some or none. The first step in which they are there counts.

        With `knows_plain` it is known what such a step takes without what makes drafts.
        """
        if not (used or self._awaits_note):
            return
        self._awaits_note = False
        if used:
            self._pause, self._rest = 0, FIRST_REST
            self._uses += 1
            if self._uses >= (self._enough_uses if knows_plain else FIRST_COMPARISON) and not self._rests:
                self._rests = self._compares = True
                self._uses, self._rest_left = 0, COMPARISON
                self._enough_uses = min(GROWTH * self._enough_uses, LAST_COMPARISON)
        elif self._pause < LONGEST_PAUSE:
            self._pause = 2 * self._pause + 1
        elif not self._rests:
            self._rests, self._rest_left = True, self._rest
            self._rest = min(2 * self._rest, LONGEST_REST)
        self._left = self._pause
