"""Drafts of requests whose tokens are limited: what may follow each of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jaxllm.engine.features.faults import Faults, fault_of_step, is_of_one_request
from jaxllm.executor.runner import Runner
from jaxllm.executor.sampler.constrained import ConstrainedRows
from jaxllm.requests.request import Request
from jaxllm.scheduler.plan import StepPlan
from jaxllm.structured.constraint import Constraint
from jaxllm.structured.constraints import Constraints

Masks = npt.NDArray[np.int32]


class ConstrainedDrafts:
    """Chooses tokens after the drafts of such requests.

    What may follow a draft is found on a copy of the request's constraint, as long as the drafts before are allowed.
    Where that fails nothing is chosen: the draft, and those after it, count for nothing.
    """

    def __init__(self, faults: Faults, constraints: Constraints, runner: Runner) -> None:
        self._faults, self._constraints, self._runner = faults, constraints, runner

    def choose(
        self,
        plan: StepPlan,
        constrained: ConstrainedRows,
        firsts: npt.NDArray[np.int32],
        requests: Sequence[Request],
        masks: Masks,
    ) -> None:
        """Choose the tokens after the drafts of rows whose own tokens are chosen, place after place.

        `firsts`, int32 [n], says where in `constrained` each row begins; `requests` and `masks` [n, W] are the rows'.
        """
        branches = self._branches(plan, constrained, firsts, requests, masks)
        while branches := [each for each in branches if self._advances(each)]:
            found, problems = self._fill(branches)
            # What is wrong after a guess is found again if the guess is right.
            is_right = np.array([problem is None for problem in problems])
            branches = [each for each, right in zip(branches, is_right, strict=True) if right]
            found = np.ascontiguousarray(found[is_right])
            for each, mask in zip(branches, found, strict=True):
                each.mask = mask
            if branches:
                places = np.array([each.place for each in branches], np.int32)
                with fault_of_step("sampling constrained tokens"):
                    self._runner.choose(constrained, places, found)

    def _branches(
        self,
        plan: StepPlan,
        constrained: ConstrainedRows,
        firsts: npt.NDArray[np.int32],
        requests: Sequence[Request],
        masks: Masks,
    ) -> "list[_Branch]":
        """The rows that have drafts."""
        assert plan.num_drafts is not None
        assert plan.draft_ids is not None
        ends = np.cumsum(plan.num_drafts)
        found = []
        for first, request, mask in zip(firsts.tolist(), requests, masks, strict=True):
            row = int(constrained.rows[first])
            end, count = int(ends[row]), int(plan.num_drafts[row])
            if count and request.constraint is not None:
                drafts = plan.draft_ids[end - count : end].tolist()
                found.append(_Branch(request, request.constraint.branch(), first, drafts, mask))
        return found

    def _advances(self, branch: "_Branch") -> bool:
        """Let a branch take its next draft; False where there is none, or nothing is to be chosen after it."""
        with self._faults.guard(branch.request):
            return branch.advance()
        return False

    def _fill(self, branches: "list[_Branch]") -> tuple[Masks, list[str | None]]:
        """`Constraints.masks`; where it fails, it is said of all that something is wrong."""
        try:
            return self._constraints.masks([each.constraint for each in branches])
        except BaseException as error:
            if not is_of_one_request(error):
                raise
        return np.zeros((len(branches), self._constraints.num_words), np.int32), ["failed"] * len(branches)


@dataclass
class _Branch:
    """How far the drafts of a row have come."""

    request: Request
    constraint: Constraint
    place: int
    """In `ConstrainedRows`, after the drafts that were taken."""
    drafts: list[int]
    """Those that were not."""
    mask: Masks
    """What may follow those that were."""

    def advance(self) -> bool:
        """Take the next draft. False: there is none, it is not allowed, or nothing can follow it."""
        if not self.drafts or not Constraint.allows(self.mask, self.drafts[0]):
            return False
        self.place += 1
        return self.constraint.take([self.drafts.pop(0)]) is None and not self.constraint.ended
