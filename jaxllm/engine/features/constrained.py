"""Constrained decoding: requests whose tokens are limited, or chosen from logits that processors have changed."""

from dataclasses import dataclass, field
from itertools import takewhile
from typing import TYPE_CHECKING, Protocol

import numpy as np
import numpy.typing as npt

from jaxllm.engine.features.constrained_drafts import ConstrainedDrafts
from jaxllm.engine.features.faults import Faults, fault_of_step, is_of_one_request
from jaxllm.engine.features.feature import StepFeature
from jaxllm.errors import ConfigError, RequestError
from jaxllm.executor.model_files import tokenizer_folder
from jaxllm.executor.resolved import ResolvedConfig
from jaxllm.executor.runner import Dispatched, Runner, StepResult
from jaxllm.executor.sampler.constrained import ConstrainedRows
from jaxllm.models.errors import ModelError
from jaxllm.requests.request import Request
from jaxllm.scheduler.plan import StepPlan
from jaxllm.scheduler.scheduler import Scheduler
from jaxllm.structured.backend import Vocabulary, forbid
from jaxllm.structured.constraints import Constraints

if TYPE_CHECKING:
    from jaxllm.engine.features.logits_processors import Processing
    from jaxllm.scheduler.sharded import ShardedScheduler


class Refuse(Protocol):
    """Ends a request that cannot be served, with a message and the parameter at fault."""

    def __call__(self, request: Request, message: str, parameter: str | None, *, is_fault: bool = False) -> None:
        """With `is_fault` the request is not to blame."""


@dataclass
class Tail:
    """What follows the first sampled token of a row."""

    token_ids: list[int] = field(default_factory=list)
    num_accepted: int = 0
    """Drafts of the row that these tokens agree with, each after the one before."""
    complete: bool = False
    """The output is complete with it, whatever else would let it go on."""
    problem: str | None = None
    """Why the request cannot go on."""
    parameter: str = "structured_outputs"
    """The parameter that is at fault then."""


class ConstrainedDecoding(StepFeature):
    """The requests that have constraints on their tokens, or wait for one.

    The host computes which tokens they may be given while the device runs the forward pass, and must do so before the
    next step is dispatched. When a token is known, those that are bound to follow come with it: they are computed in
    one chunk, in the next step.

    So it is with requests that use logits processors, which may have a grammar as well.
    """

    hold_reason = "grammar"

    def __init__(
        self,
        faults: Faults,
        constraints: Constraints,
        scheduler: "Scheduler | ShardedScheduler",
        runner: Runner,
        refuse: Refuse,
        processing: "Processing | None" = None,
    ) -> None:
        """`processing` has the logits processors of an engine that has any."""
        super().__init__(faults)
        self._processing = processing
        self._wrong: list[tuple[Request, RequestError]] = []
        self._constraints, self._scheduler, self._runner, self._refuse = constraints, scheduler, runner, refuse
        self._drafts = ConstrainedDrafts(faults, constraints, runner)
        self._collected: tuple[Dispatched, dict[int, Tail]] | None = None  # the step, and its tails by row

    def handles(self, request: Request) -> bool:
        """Whether the tokens of the request are limited, or logits processors have a say."""
        if self._processing is not None and self._processing.handles(request):
            return True
        params = request.params
        limited = params.structured_outputs is not None or params.thinking_token_budget is not None
        return limited and params.uses_grammar

    def takes_drafts(self, request: Request) -> bool:
        """Whether such a request may have drafts: the tokens among which it chooses follow from its grammar alone."""
        return not (self._is_processed(request) or request.params.uses_penalties)

    def on_added(self, request: Request) -> None:
        """Release a request as soon as it has its constraint."""
        if self._processing is not None:
            try:
                self._processing.begin(request)
            except RequestError as error:
                self._wrong.append((request, error))
                return
        if not request.params.uses_grammar or self._constraints.begin(request):
            self._scheduler.release(request, self.hold_reason)

    def on_ended(self, request: Request) -> None:
        """Forget a request."""
        try:
            self._constraints.forget(request)
        finally:
            if self._processing is not None:
                self._processing.forget(request)

    def on_step_begin(self) -> None:
        """Release requests whose grammars are compiled, and reject those whose grammars are wrong."""
        wrong, self._wrong = self._wrong, []
        for request, found in wrong:
            self._refuse(request, str(found), found.parameter)
        for request, compiled in self._constraints.ready():
            with self.faults.guard(request):
                try:
                    self._constraints.start(request, compiled)
                except RequestError as error:
                    self._refuse(request, str(error), error.parameter)
                else:
                    self._scheduler.release(request, self.hold_reason)

    def on_idle(self) -> None:
        """Wait a little for a grammar, if nothing else can be done."""
        if self._scheduler.all_requests_held:
            self._constraints.wait()

    def before_schedule(self, last: Dispatched) -> None:
        """The next step reads the tokens of this one on the device."""
        self._choose(last)

    def on_scheduled(self, plan: StepPlan) -> None:
        """Say which rows of a step are constrained."""
        constrained = [
            (request.constraint is not None and not request.constraint.free) or self._is_processed(request)
            for request in plan.requests
        ]
        rows: npt.NDArray[np.bool_] = np.array(constrained, np.bool_) & plan.samples
        plan.constrained = rows if rows.any() else None

    def before_collect(self, step: Dispatched) -> None:
        """The tokens of this step are wanted."""
        self._choose(step)

    def _choose(self, step: Dispatched) -> None:
        """Choose the tokens that the step left out, unless that is done. All steps before it must be collected."""
        constrained, plan = step.constrained, step.plan
        if constrained is None or constrained.begun:
            return
        constrained.begun = True
        live = self._scheduler.table.generation[plan.slots] == plan.generations
        is_first = constrained.places == 0
        which = np.flatnonzero((plan.samples & live)[constrained.rows] & is_first).astype(np.int32)
        if not len(which):
            return
        requests = [plan.requests[row] for row in constrained.rows[which].tolist()]
        masks, problems = self._masks(requests)
        failed = self._choose_rows(constrained, which, requests, masks)
        for request, problem in zip(requests, problems, strict=True):
            if problem is not None:
                self._refuse(request, f"structured_outputs: {problem}", "structured_outputs")
        for request, message in failed:
            self._refuse(request, message, None, is_fault=True)
        if plan.num_drafts is not None:
            self._drafts.choose(plan, constrained, which, requests, masks)

    def _masks(self, requests: list[Request]) -> tuple[npt.NDArray[np.int32], list[str | None]]:
        """See `Constraints.fill`; what has no constraint may go on with any token."""
        if self._processing is None:
            return self._fill(requests)
        limited = [row for row, request in enumerate(requests) if request.constraint is not None]
        found, found_problems = self._fill([requests[row] for row in limited])
        masks: npt.NDArray[np.int32] = np.full((len(requests), found.shape[1]), -1, np.int32)
        masks[limited] = found
        problems: list[str | None] = [None] * len(requests)
        for row, problem in zip(limited, found_problems, strict=True):
            problems[row] = problem
        return masks, problems

    def _fill(self, requests: list[Request]) -> tuple[npt.NDArray[np.int32], list[str | None]]:
        """`Constraints.fill`; where it fails, request by request, and whose own fails may take any token and ends."""
        try:
            return self._constraints.fill(requests)
        except BaseException as error:
            if not is_of_one_request(error):
                raise
        masks: npt.NDArray[np.int32] = np.full((len(requests), self._constraints.num_words), -1, np.int32)
        problems: list[str | None] = [None] * len(requests)
        alone = self.faults.map_requests(requests, lambda each: self._constraints.fill([each]))
        for row, found in enumerate(alone):
            if found is not None:
                masks[row], problems[row] = found[0][0], found[1][0]
        return masks, problems

    def _choose_rows(
        self,
        constrained: ConstrainedRows,
        which: npt.NDArray[np.int32],
        requests: list[Request],
        masks: npt.NDArray[np.int32],
    ) -> list[tuple[Request, str]]:
        """Choose the tokens of these rows, each in its way; requests whose processors have failed, with the reason."""
        processing, table = self._processing, self._scheduler.table
        if processing is None:
            with fault_of_step("sampling constrained tokens"):
                self._runner.choose(constrained, which, masks)
            return []
        ways: dict[str, list[int]] = {"plain": [], "compiled": [], "host": []}
        for row, request in enumerate(requests):
            way = "plain" if not processing.has(request) else "host" if processing.on_host(request) else "compiled"
            ways[way].append(row)
        failed = []
        for way, rows in ways.items():
            if not rows:
                continue
            own = [requests[row] for row in rows]
            if way == "plain":
                with fault_of_step("sampling constrained tokens"):
                    self._runner.choose(constrained, which[rows], masks[rows])
                continue
            logits = None
            if way == "host":
                with fault_of_step("reading logits"):
                    logits = self._runner.row_logits(constrained, which[rows])
                forbid(logits, masks[rows])
                outputs = [table.output_tokens(request.slot) for request in own]
                failed += [(own[row], message) for row, message in processing.apply(own, outputs, logits).items()]
            uses, numbers, problems = processing.compiled(own, lambda request: table.output_tokens(request.slot))
            failed += [(own[row], message) for row, message in problems.items()]
            with fault_of_step("sampling from processed logits"):
                self._runner.choose_processed(constrained, which[rows], masks[rows], uses, numbers, logits)
        return failed

    def _is_processed(self, request: Request) -> bool:
        return self._processing is not None and self._processing.has(request)

    def on_collected(self, step: Dispatched, result: StepResult) -> None:
        """Take the sampled tokens of a step's constrained rows, and put those after them which are bound to follow.

        Requests that cannot go on end here, before anybody takes a token that was not allowed.
        """
        if step.constrained is None:
            return
        plan = step.plan
        counts = np.ones(plan.num_rows, np.int32) if result.counts is None else result.counts
        ends = np.cumsum(counts)
        live = self._scheduler.table.generation[plan.slots] == plan.generations
        rows = [row for row in np.unique(step.constrained.rows).tolist() if plan.samples[row] and live[row]]
        chosen = step.constrained.num_chosen(plan.num_rows)
        # What follows a draft after which nothing was chosen is no token.
        sampled = {row: result.token_ids[ends[row] - counts[row] : ends[row]][: chosen[row]].tolist() for row in rows}
        tails = {row: self._guarded_tail(plan.requests[row], sampled[row]) for row in rows}
        with fault_of_step("checking for rows without an allowed token"):
            empty = step.constrained.empty().tolist()
        for row in empty:
            if row in tails:
                tails[row] = Tail(problem="logits processors forbid every token", parameter="logits_processors")
        wrong = [(plan.requests[row], tail) for row, tail in tails.items() if tail.problem is not None]
        tails = {row: Tail() if tail.problem is not None else tail for row, tail in tails.items()}
        self._collected = step, tails
        sizes = counts.copy()
        sizes[rows] = [1 + len(tail.token_ids) for tail in tails.values()]
        if result.counts is not None or (sizes > 1).any():
            own = np.split(result.token_ids, ends[:-1])
            for row, tail in tails.items():
                own[row] = np.array([sampled[row][0], *tail.token_ids], np.int32)
            plan.num_forced = np.zeros(plan.num_rows, np.int32)
            plan.num_forced[rows] = [len(tail.token_ids) - tail.num_accepted for tail in tails.values()]
            result.token_ids, result.counts = np.concatenate(own), sizes
        for request, tail in wrong:
            self._refuse(request, tail.problem or "", tail.parameter)

    def on_accept(self, step: Dispatched) -> list[Request]:
        """End the requests whose outputs are complete; returns them."""
        collected, self._collected = self._collected, None
        # A step whose collection failed here has left nothing, and what an earlier one left is not this one's.
        if collected is None or collected[0] is not step:
            return []
        finished = []
        for row, tail in collected[1].items():
            request = step.plan.requests[row]
            if tail.complete and request.finish_reason is None:
                self._scheduler.finish(request.request_id, "stop")
                finished.append(request)
        return finished

    def _guarded_tail(self, request: Request, sampled: list[int]) -> Tail:
        with self.faults.guard(request):
            return self._tail(request, sampled)
        return Tail()

    def _tail(self, request: Request, sampled: list[int]) -> Tail:
        """Let a request's constraint take the tokens of a row: one, and those after drafts that were right.

        What must follow a token comes before what was sampled after the draft there.
        """
        constraint, params, table, slot = request.constraint, request.params, self._scheduler.table, request.slot
        if constraint is None:
            return Tail(sampled[1:], len(sampled) - 1)
        tail, problem = Tail(), constraint.take(sampled[:1])
        room = int(table.max_total[slot] - table.num_tokens[slot]) - 1
        num_output = int(table.num_tokens[slot] - table.num_prompt_tokens[slot]) + 1
        skips = not (params.wants_logprobs or params.uses_penalties or params.uses_bias or self._is_processed(request))
        while problem is None and len(tail.token_ids) < room:
            if constraint.ended:
                tail.complete = True
                break
            done = 1 + len(tail.token_ids)
            further = sampled[done : done + 1] if tail.token_ids == sampled[1:done] else []
            if constraint.finished:
                # Where log-probabilities are wanted the model gives the end token, unless it is kept from that.
                tail.complete = not params.wants_logprobs or num_output + done - 1 < params.min_tokens
                tail.token_ids += [] if params.wants_logprobs else request.eos_token_ids[:1]
                if tail.complete or not further:
                    break
            following = (constraint.forced() if skips else []) or further
            if not following:
                break
            tail.token_ids += following
            problem = constraint.take(following)
        agreed = zip(sampled[:-1], [*sampled[:1], *tail.token_ids[:-1]], strict=False)
        tail.num_accepted = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], agreed)) if tail.token_ids else 0
        if problem is not None:
            tail.problem = _problem(request, problem, is_processed=self._is_processed(request))
        return tail

    def close(self) -> None:
        """End the threads that compile."""
        self._constraints.close()


def _problem(request: Request, problem: str, *, is_processed: bool) -> str:
    if request.params.uses_bias:
        return (
            "structured_outputs: no token can follow: other parameters (logit_bias, allowed_token_ids, bad_words, "
            "min_tokens) forbid everything that the grammar allows here"
        )
    if is_processed:
        return (
            "structured_outputs: no token can follow: logits processors forbid everything that the grammar allows here"
        )
    return f"structured_outputs: {problem}"


def make_constraints(resolved: ResolvedConfig) -> Constraints:
    """What follows grammars: it needs to know the bytes of tokens, and no more of text.

    Raises `ConfigError` for a tokenizer that is missing or wrong.
    """
    options = resolved.config.model
    try:
        folder = tokenizer_folder(options, resolved.folder)
        return Constraints(
            Vocabulary(folder, resolved.vocab_size, tuple(resolved.model.eos_token_ids)), resolved.config.structured
        )
    except (ModelError, RequestError) as error:
        raise ConfigError(str(error)) from error
