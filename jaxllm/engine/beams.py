"""Beam searches as a part of the engine's steps."""

from collections.abc import Callable
from typing import Any

import numpy as np

from jaxllm.beam.group import BeamGroup
from jaxllm.engine.collaborator import Collaborator
from jaxllm.outputs import EngineOutput
from jaxllm.request import FinishReason, Request
from jaxllm.runtime.runner import StepResult
from jaxllm.scheduler.plan import StepPlan

Finish = Callable[[Request, FinishReason], EngineOutput]
"""Ends a request; returns its last output."""


class BeamSearches(Collaborator):
    """Tells searches which tokens are likeliest behind each of their beams, and ends them when they are over."""

    def __init__(self, finish: Finish) -> None:
        super().__init__()
        self._finish = finish

    def concerns(self, request: Request) -> bool:
        """Whether the request asks for a beam search."""
        return request.params.beam_search is not None

    def reported(self, plan: StepPlan, result: StepResult, outputs: list[EngineOutput]) -> None:
        """Give beams what they may go on with, and add the outputs of the searches that are over."""
        if plan.lanes is None:
            return
        logprobs: Any = result.logprobs
        for row in plan.lanes.tolist():
            request = plan.requests[row]
            assert request.group is not None
            request.group.take(request, np.asarray(logprobs.top_ids[row]), np.asarray(logprobs.top_logprobs[row]))
            if request.group.search.done:
                outputs.append(self._end(request.group))

    def _end(self, group: BeamGroup) -> EngineOutput:
        beams, reason = group.hypotheses(), group.search.best[0].reason
        output = self._finish(group.leader, reason)
        output.num_cached_tokens, output.beams = group.leader.num_cached_tokens, beams
        return output
