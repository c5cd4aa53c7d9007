"""Steps with requests whose tokens are limited: what the engine does for them, beside what it does for all."""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import chain

import numpy as np
import numpy.typing as npt

from jaxllm.request import Request
from jaxllm.runtime.runner import Dispatched, Runner, StepResult
from jaxllm.scheduler.plan import StepPlan
from jaxllm.scheduler.scheduler import Scheduler
from jaxllm.structured.guides import Guides

Refuse = Callable[[Request, str, str | None], None]
"""Ends a request that cannot be served, with a message and the parameter at fault."""


@dataclass
class Tail:
    """What follows a sampled token without a choice."""

    token_ids: list[int] = field(default_factory=list)
    complete: bool = False
    """The output is complete with it, whatever else would let it go on."""
    problem: str | None = None
    """Why the request cannot go on."""


class GuidedSteps:
    """The requests that have guides, or wait for one.

    The host computes which tokens they may be given (`choose`) while the device runs the forward pass, and must do so
    before the next step is dispatched. When a token is known, those that are bound to follow come with it (`extend`):
    they are computed in one chunk, in the next step. While `requests` is empty nothing needs to be called.
    """

    def __init__(self, guides: Guides, scheduler: Scheduler, runner: Runner, refuse: Refuse) -> None:
        self._guides, self._scheduler, self._runner, self._refuse = guides, scheduler, runner, refuse
        self.requests: set[Request] = set()
        """That have a guide, or wait for it."""
        self._tails: dict[int, Tail] = {}  # by row of the step that was collected last

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

    def extend(self, step: Dispatched, result: StepResult) -> None:
        """Take the sampled tokens of a step's constrained rows, and put those behind them which are bound to follow."""
        plan, tokens = step.plan, result.token_ids
        assert step.constrained is not None
        live = self._scheduler.table.generation[plan.slots] == plan.generations
        rows = [row for row in step.constrained.rows.tolist() if plan.samples[row] and live[row]]
        self._tails = {row: self._tail(plan.requests[row], int(tokens[row])) for row in rows}
        sizes = np.zeros(plan.num_rows, np.int32)
        sizes[rows] = [len(tail.token_ids) for tail in self._tails.values()]
        if sizes.any():
            forced = list(chain.from_iterable(tail.token_ids for tail in self._tails.values()))
            result.token_ids = np.insert(tokens, np.repeat(np.arange(1, len(sizes) + 1), sizes), forced)
            result.counts = sizes + 1

    def settle(self, step: Dispatched) -> list[Request]:
        """End the requests whose outputs are complete, once the scheduler has taken the tokens; returns them.

        Rows of requests that are refused do not count as sampled any more.
        """
        finished = []
        for row, tail in self._tails.items():
            request = step.plan.requests[row]
            if request.finish_reason is not None:
                continue
            if tail.problem is not None:
                step.plan.samples[row] = False
                self._refuse(request, tail.problem, "structured_outputs")
            elif tail.complete:
                self._scheduler.finish(request.request_id, "stop")
                finished.append(request)
        self._tails = {}
        return finished

    def _tail(self, request: Request, token_id: int) -> Tail:
        """Let a request's constraint take one token; what must follow it."""
        guide, params, table, slot = request.guide, request.params, self._scheduler.table, request.slot
        assert guide is not None
        tail, problem = Tail(), guide.take([token_id])
        room = int(table.max_total[slot] - table.num_tokens[slot]) - 1
        num_output = int(table.num_tokens[slot] - table.num_prompt_tokens[slot]) + 1
        skips = not (params.wants_logprobs or params.uses_penalties or params.uses_bias)
        while problem is None and len(tail.token_ids) < room:
            if guide.ended:
                tail.complete = True
                break
            if guide.finished:
                # Where log-probabilities are wanted the model gives the end token, unless it is kept from that.
                tail.complete = not params.wants_logprobs or num_output < params.min_tokens
                tail.token_ids += [] if params.wants_logprobs else request.eos_token_ids[:1]
                break
            following = guide.forced() if skips else []
            if not following:
                break
            tail.token_ids += following
            problem = guide.take(following)
        if problem is not None:
            tail.problem = _problem(request, problem)
        return tail

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
