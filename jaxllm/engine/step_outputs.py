"""What the engine tells of requests after a step: their tokens, why they ended, and when they first ran."""

from collections.abc import Sequence

import numpy as np

from jaxllm.engine.features.faults import Faults
from jaxllm.engine.features.logprobs import output_logprobs
from jaxllm.executor.runner import StepResult
from jaxllm.requests.outputs import EngineOutput
from jaxllm.requests.request import FinishReason, Request
from jaxllm.scheduler.plan import StepPlan


class StepOutputs:
    """Makes outputs. It remembers when requests were scheduled, until their first output takes that along."""

    def __init__(self, faults: Faults) -> None:
        """`faults` is told of requests whose output cannot be made."""
        self._faults = faults
        self._scheduled: dict[str, float] = {}

    def on_scheduled(self, plan: StepPlan, now: float) -> None:
        """Requests have been admitted to a step `now`, in seconds of the monotonic clock."""
        for request in plan.admitted:
            # Of those with output it was told before.
            is_new = not (request.num_preemptions or request.output_token_ids)
            if is_new and (request.group is None or request.group.leader is request):
                self._scheduled[request.request_id] = now

    def forget(self, request_id: str) -> None:
        """A request has ended that had no output."""
        self._scheduled.pop(request_id, None)

    def last_of(self, request: Request, reason: FinishReason) -> EngineOutput:
        """The last output of a request that ends outside a step, without tokens."""
        scheduled = self._scheduled.get(request.request_id)
        return EngineOutput(request.request_id, [], finish_reason=reason, scheduled_time=scheduled)

    def of_step(self, plan: StepPlan, result: StepResult, finished: Sequence[Request]) -> list[EngineOutput]:
        """One output for each row of the step that sampled; some of their requests have `finished` with it."""
        outputs = []
        rows = np.flatnonzero(plan.samples).tolist()
        one_each = result.counts is None
        tokens = result.token_ids[plan.samples][:, None].tolist() if one_each else _tokens_by_row(plan, result)
        for row, token_ids in zip(rows, tokens, strict=True):
            request = plan.requests[row]
            output = EngineOutput(request.request_id, token_ids, num_cached_tokens=request.num_cached_tokens)
            if result.logprobs is not None:
                with self._faults.guard(request):
                    output.logprobs = output_logprobs(request, token_ids, result, row)
            outputs.append(output)
        if finished:
            by_id = {output.request_id: output for output in outputs}
            for request in finished:
                output = by_id[request.request_id]
                output.finish_reason, output.stop_reason = request.finish_reason, request.stop_reason
        if self._scheduled:
            for output in outputs:
                output.scheduled_time = self._scheduled.pop(output.request_id, None)
        return outputs


def refusal(request: Request, message: str, parameter: str | None = None, *, is_fault: bool = False) -> EngineOutput:
    """The last output of a request that is not served any further."""
    return EngineOutput(
        request.request_id,
        [],
        finish_reason="abort",
        refusal=message,
        refused_parameter=parameter,
        is_fault=is_fault,
    )


def num_last(plan: StepPlan, result: StepResult, finished: Sequence[Request]) -> int:
    """Tokens that need no step of their own: the last of each request that ends, or all that a grammar gave it now."""
    if result.counts is None or plan.num_taken is None or not finished:
        return len(finished)
    ended = {request.request_id for request in finished}
    rows = [row for row, request in enumerate(plan.requests) if request.request_id in ended]
    if plan.num_drafts is not None:
        rows = [row for row in rows if not plan.num_drafts[row]]
    return len(finished) - len(rows) + int(plan.num_taken[rows].sum())


def _tokens_by_row(plan: StepPlan, result: StepResult) -> list[list[int]]:
    """The tokens that were taken of each row that samples, where some have several."""
    tokens, counts, taken = result.token_ids, result.counts, plan.num_taken
    assert counts is not None
    assert taken is not None
    firsts = (np.cumsum(counts) - counts)[plan.samples]
    ends = firsts + taken[plan.samples]
    return [tokens[first:end].tolist() for first, end in zip(firsts.tolist(), ends.tolist(), strict=True)]
