"""Steps with requests whose tokens are limited: what the engine does for them, beside what it does for all."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from jaxllm.request import Request
from jaxllm.runtime.runner import Dispatched, Runner
from jaxllm.scheduler.plan import StepPlan
from jaxllm.scheduler.scheduler import Scheduler
from jaxllm.structured.guides import Guides

Refuse = Callable[[Request, str, str | None], None]
"""Ends a request that cannot be served, with a message and the parameter at fault."""


@dataclass
class Forced:
    """Tokens that followed the sampled ones without a choice, by request id, and the requests that they end."""

    token_ids: dict[str, list[int]] = field(default_factory=dict)
    finished: list[Request] = field(default_factory=list)


class GuidedSteps:
    """The requests that have guides, or wait for one.

    The host computes which tokens they may be given (`choose`) while the device runs the forward pass, and must do so
    before the next step is dispatched. When a token is known, those that are bound to follow come with it (`advance`):
    they are computed in one chunk, in the next step. While `requests` is empty nothing needs to be called.
    """

    def __init__(self, guides: Guides, scheduler: Scheduler, runner: Runner, refuse: Refuse) -> None:
        self._guides, self._scheduler, self._runner, self._refuse = guides, scheduler, runner, refuse
        self.requests: set[Request] = set()
        """That have a guide, or wait for it."""

    def add(self, request: Request) -> None:
        """Take a request that is held in the scheduler, and release it as soon as it has its guide."""
        self.requests.add(request)
        if self._guides.begin(request):
            self._scheduler.release(request)

    def forget(self, request: Request) -> None:
        """The request has ended."""
        self.requests.discard(request)
        self._guides.forget(request)

    def admit(self) -> None:
        """Let those run whose grammars have been compiled, and refuse those whose have not."""
        if not self.requests:
            return
        for request, error in self._guides.ready():
            if error is None:
                self._scheduler.release(request)
            else:
                self._refuse(request, str(error), error.parameter)

    def wait(self) -> None:
        """Wait a little for a grammar, if nothing else can be done."""
        if self.requests and self._scheduler.only_held:
            self._guides.wait()

    def rows(self, plan: StepPlan) -> npt.NDArray[np.bool_] | None:
        """The rows of a step whose tokens are to be chosen by `choose`, bool [n]; None when there are none."""
        if not self.requests:
            return None
        guided = [request.guide is not None and not request.guide.free for request in plan.requests]
        rows: npt.NDArray[np.bool_] = np.array(guided, np.bool_) & plan.samples
        return rows if rows.any() else None

    def choose(self, step: Dispatched) -> None:
        """Choose the tokens that the step left out, unless that is done. All steps before it must be collected."""
        constrained, plan = step.constrained, step.plan
        if constrained is None or constrained.begun:
            return
        constrained.begun = True
        live = self._scheduler.table.generation[plan.slots] == plan.generations
        which = np.flatnonzero((plan.samples & live)[constrained.rows]).astype(np.int32)
        if not len(which):
            return
        requests = [plan.requests[row] for row in constrained.rows[which].tolist()]
        masks, problems = self._guides.fill(requests)
        self._runner.choose(constrained, which, masks)
        for request, problem in zip(requests, problems, strict=True):
            if problem is not None:
                self._refuse(request, f"structured_outputs: {problem}", "structured_outputs")

    def advance(self, step: Dispatched, token_ids: npt.NDArray[np.int32], under_way: Sequence[Dispatched]) -> Forced:
        """Take the tokens of a step's guided rows, which the scheduler has taken: int32 [n] for all rows.

        `under_way` are the later steps. Rows of requests that are refused do not count as sampled any more.
        """
        forced, plan = Forced(), step.plan
        assert step.constrained is not None
        for row in step.constrained.rows.tolist():
            request = plan.requests[row]
            if not plan.samples[row] or request.finish_reason is not None:
                continue
            problem = self._advance(request, int(token_ids[row]), under_way, forced)
            if problem is not None:
                plan.samples[row] = False
                self._refuse(request, problem, "structured_outputs")
        return forced

    def _advance(self, request: Request, token_id: int, under_way: Sequence[Dispatched], forced: Forced) -> str | None:
        """Take one token, and what must follow it; returns what is wrong, if anything."""
        guide, params = request.guide, request.params
        assert guide is not None
        problem = guide.take([token_id])
        if problem is not None:
            return _problem(request, problem)
        skips = not (params.wants_logprobs or params.uses_penalties or params.uses_bias)
        while request.finish_reason is None:
            # Where log-probabilities are wanted the model gives the end token, unless it is kept from that.
            if guide.ended or (guide.finished and params.wants_logprobs and self._forbids_end(request)):
                self._finish(request, forced)
                break
            if guide.finished and not params.wants_logprobs:
                self._append(request, [request.eos_token_ids[0]], under_way, forced)
                self._finish(request, forced)
                break
            following = guide.forced() if skips else []
            if not following:
                break
            taken = self._append(request, following, under_way, forced)
            problem = guide.take(taken)
            if problem is not None:
                return _problem(request, problem)
        return None

    def _forbids_end(self, request: Request) -> bool:
        """Whether the end token cannot be sampled yet, so that it has to be given."""
        table, slot = self._scheduler.table, request.slot
        return bool(table.num_tokens[slot] - table.num_prompt_tokens[slot] < request.params.min_tokens)

    def _append(
        self, request: Request, token_ids: list[int], under_way: Iterable[Dispatched], forced: Forced
    ) -> list[int]:
        """Give the request tokens; returns those that it takes."""
        for step in under_way:
            for row in np.flatnonzero((step.plan.slots == request.slot) & step.plan.samples).tolist():
                if step.plan.requests[row] is request:
                    self._scheduler.take_back(step.plan, row)
        taken, ended = self._scheduler.append(request, token_ids)
        forced.token_ids.setdefault(request.request_id, []).extend(taken)
        if ended:
            forced.finished.append(request)
        return taken

    def _finish(self, request: Request, forced: Forced) -> None:
        """The grammar is complete, so the output is, whatever else would let it go on."""
        if request.finish_reason is None:
            self._scheduler.finish(request.request_id, "stop")
            forced.finished.append(request)

    def close(self) -> None:
        """End the threads that compile."""
        self._guides.close()


def _problem(request: Request, problem: str) -> str:
    if request.params.uses_bias:
        return (
            "structured_outputs: no token is left to go on with: what the grammar allows at this place, other "
            "parameters (logit_bias, allowed_token_ids, bad_words, min_tokens) forbid"
        )
    return f"structured_outputs: {problem}"
