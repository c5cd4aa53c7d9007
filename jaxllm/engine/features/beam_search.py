"""Beam searches as a part of the engine's steps."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from jaxllm.engine.features.faults import Faults
from jaxllm.engine.features.feature import StepFeature
from jaxllm.executor.runner import StepResult
from jaxllm.requests.outputs import EngineOutput
from jaxllm.requests.request import FinishReason, Request
from jaxllm.scheduler.plan import StepPlan

if TYPE_CHECKING:
    from jaxllm.beam.group import BeamGroup

Finish = Callable[[Request, FinishReason], EngineOutput]
"""Ends a request; returns its last output."""


class BeamSearches(StepFeature):
    """Gives searches the most likely next tokens of each beam, and ends those that are complete."""

    def __init__(self, faults: Faults, max_model_len: int, finish: Finish) -> None:
        super().__init__(faults)
        self._max_model_len, self._finish = max_model_len, finish

    def handles(self, request: Request) -> bool:
        """Whether the request asks for a beam search."""
        return request.params.beam_search is not None

    def prepare(self, request: Request) -> None:
        """Give the request its beams."""
        # Most engines search for nobody: starts are faster without the import.
        from jaxllm.beam.group import BeamGroup

        request.group = BeamGroup.of(request, self._max_model_len)

    def on_outputs(self, plan: StepPlan, result: StepResult, outputs: list[EngineOutput]) -> None:
        """Give beams what they may go on with, and add the outputs of the searches that are over."""
        if plan.grouped is None:
            return
        logprobs: Any = result.logprobs
        for row in plan.grouped.tolist():
            request = plan.requests[row]
            group = cast("BeamGroup", request.group)
            with self.faults.guard(group.leader):
                group.take(request, np.asarray(logprobs.top_ids[row]), np.asarray(logprobs.top_logprobs[row]))
                if group.search.done:
                    outputs.append(self._end(group))

    def _end(self, group: "BeamGroup") -> EngineOutput:
        found, reason = group.hypotheses(), group.search.best[0].reason
        output = self._finish(group.leader, reason)
        output.num_cached_tokens, output.sequences = group.leader.num_cached_tokens, found
        return output
