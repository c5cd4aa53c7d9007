"""What one step computes."""

from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from jaxllm.kv.pages import Int32Array
from jaxllm.requests.request import Request

FIRST_UNKNOWN: Final = -3
"""A draft that only the device knows: its first guess for the slot. The second is one less, and so on."""


@dataclass(slots=True, eq=False, kw_only=True)
class StepPlan:
    """The rows of a step. Rows that bring exactly their last known token come first (`num_decodes` of them).

    slots, num_new_tokens, starts: int32 [n]; a row computes positions `starts` to `starts + num_new_tokens` of the
    request in its slot. `requests` are the owners of the slots when the step was scheduled.
    samples: bool [n], the row reaches its last known token, so the token sampled from it counts. `Scheduler.update`
    clears it where the request has left its slot in the meantime: afterwards it says whose token was taken.
    admitted: requests that got a slot in this step, for the first time or after preemption.
    preempted: requests that lost theirs.
    generations: int64 [n], tells a slot's owner from a later one.
    num_taken: int32 [n], filled in by `Scheduler.update`: how many tokens of each row were taken. None: one of each
    row that samples.
    constrained: bool [n], set before the step is dispatched: rows of those that sample whose tokens `Runner.choose`
    chooses, among those that a constraint allows. None: no row.

    num_drafts: int32 [n], how many of each row's new tokens, the last ones, are drafts: guesses at what follows the
    known tokens. `draft_ids` are these, row after row. A row with drafts gets a token after each of them as well, and
    `Scheduler.update` takes those off `num_new_tokens` that were not accepted. None: no row has any. `draft_steps` is
    how many drafts the device makes of what follows this step, of each row that samples. Not `is_followed`: what makes
    them does not even read the tokens of the step. `num_forced`, int32 [n], is
    set before `Scheduler.update`: how many tokens of each row it has not computed, as a grammar has put them after the
    sampled ones. None: of no row.

    num_unknown: int32 [n], drafts of each row's last step, which was under way when this one was scheduled. Until
    `Scheduler.update` has taken that, `starts` counts all of them as accepted; the device corrects it. None: of no row.

    num_replayed: int32 [n], how many drafts of each row's last step were accepted: recurrent states begin with these.
    None: of no row.

    For groups of sequences: `copies`, int32 [c, 2], pages to copy (from, to) before the step, if any; `moved`, slots
    whose rows of the page table have changed. `grouped`, int [g], is filled in by `Scheduler.update`: rows that
    sampled for a group, whose tokens nobody takes.

    For recurrent layers: `states_before` and `states_behind`, slots of states to copy (from, to) before the step and
    after it.

    For several data shards: `parts`, a plan for each, or None where it does nothing. The rows are theirs, one part's
    after the other's, and so are `samples`, `generations` and `starts`; decodes are first in each part, not in all.
    """

    slots: Int32Array
    num_new_tokens: Int32Array
    starts: Int32Array
    samples: npt.NDArray[np.bool_]
    num_decodes: int
    num_tokens: int
    requests: list[Request]
    admitted: list[Request]
    preempted: list[Request]
    generations: npt.NDArray[np.int64]
    num_taken: Int32Array | None = None
    constrained: npt.NDArray[np.bool_] | None = None
    num_drafts: Int32Array | None = None
    draft_ids: Int32Array | None = None
    draft_steps: int = 0
    is_followed: bool = True
    num_forced: Int32Array | None = None
    num_unknown: Int32Array | None = None
    num_replayed: Int32Array | None = None
    copies: Int32Array | None = None
    moved: list[int] = field(default_factory=list)
    grouped: npt.NDArray[np.intp] | None = None
    states_before: list[tuple[int, int]] = field(default_factory=list)
    states_behind: list[tuple[int, int]] = field(default_factory=list)
    parts: "tuple[StepPlan | None, ...]" = ()

    @property
    def by_shard(self) -> "tuple[StepPlan | None, ...]":
        """The plan of every data shard: this one where there is one shard."""
        return self.parts or (self,)

    def put_in_order(self, rows: npt.NDArray[np.intp]) -> None:
        """Let the rows be those of these numbers, int [n]: all of them, in another order."""
        self.slots, self.num_new_tokens, self.starts = self.slots[rows], self.num_new_tokens[rows], self.starts[rows]
        self.samples, self.generations = self.samples[rows], self.generations[rows]
        self.requests = [self.requests[row] for row in rows.tolist()]
        if self.num_unknown is not None:
            self.num_unknown = self.num_unknown[rows]
        if self.num_replayed is not None:
            self.num_replayed = self.num_replayed[rows]

    @property
    def has_drafts(self) -> bool:
        """Whether the step checks drafts, or was scheduled when it was not known how many of the last step's count."""
        return self.num_drafts is not None or any(
            part is not None and part.num_unknown is not None for part in self.by_shard
        )

    @property
    def most_tokens(self) -> int:
        """Tokens of the shard that has most."""
        if not self.parts:
            return self.num_tokens
        return max(part.num_tokens for part in self.parts if part is not None)

    @property
    def prompt_rows(self) -> list[int]:
        """Rows after the decodes."""
        if not self.parts:
            return list(range(self.num_decodes, self.num_rows))
        rows, first = [], 0
        for part in self.parts:
            if part is not None:
                rows += [first + row for row in part.prompt_rows]
                first += part.num_rows
        return rows

    @property
    def num_rows(self) -> int:
        """Rows of the step."""
        return len(self.slots)
