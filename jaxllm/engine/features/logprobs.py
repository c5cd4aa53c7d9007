"""Log-probabilities in the outputs of an engine."""

from typing import Any

import numpy as np
from msgspec.structs import replace

from jaxllm.engine.features.faults import Faults
from jaxllm.engine.features.feature import StepFeature
from jaxllm.executor.runner import Dispatched, PromptChunk, StepResult
from jaxllm.executor.sampler.logprobs import Logprobs
from jaxllm.requests.outputs import EngineOutput, TokenLogprobs
from jaxllm.requests.request import Request
from jaxllm.scheduler.plan import StepPlan


class PromptLogprobs(StepFeature):
    """Collects the log-probabilities of prompts, which are computed in chunks, for the first output."""

    def __init__(self, faults: Faults) -> None:
        super().__init__(faults)
        self._found: dict[Request, list[TokenLogprobs | None]] = {}

    def handles(self, request: Request) -> bool:
        """Whether the request asks for the log-probabilities of its prompt, which came with its first token."""
        return request.params.prompt_logprobs is not None and not request.output_token_ids

    def on_added(self, request: Request) -> None:
        """Nothing is known of the prompt yet."""
        self._found[request] = [None] * len(request.prompt_token_ids)

    def on_ended(self, request: Request) -> None:
        """Forget a request, complete or not."""
        self._found.pop(request, None)

    def on_collected(self, step: Dispatched, result: StepResult) -> None:
        """Keep the log-probabilities of a step's chunks."""
        del step
        for chunk in result.prompts:
            if chunk.request in self._found:  # Else it was aborted while the step ran.
                with self.faults.guard(chunk.request):
                    self._take(chunk, self._found[chunk.request])

    def _take(self, chunk: PromptChunk, found: list[TokenLogprobs | None]) -> None:
        request = chunk.request
        for offset in range(chunk.end - chunk.begin):
            block, row = divmod(offset, len(chunk.blocks[0].logprob))
            position = chunk.begin + offset
            found[position] = _token_logprobs(
                int(request.prompt_token_ids[position]), chunk.blocks[block], row, request.params.prompt_logprobs
            )

    def on_outputs(self, plan: StepPlan, result: StepResult, outputs: list[EngineOutput]) -> None:
        """Hand out what is complete."""
        del result
        if self._found:
            by_id = {output.request_id: output for output in outputs}
            for row in np.flatnonzero(plan.samples).tolist():
                request = plan.requests[row]
                output = by_id.get(request.request_id)
                if output is not None:
                    output.prompt_logprobs = self._found.pop(request, None)


def output_logprobs(request: Request, token_ids: list[int], result: StepResult, row: int) -> list[TokenLogprobs] | None:
    """Log-probabilities of the tokens that a row of a step sampled, if the request asks for them."""
    params = request.params
    if params.logprobs is None and params.num_sequences == params.n:
        return None
    assert result.logprobs is not None
    first = row if result.logprob_rows is None else int(result.logprob_rows[row])
    found = [
        _token_logprobs(token_id, result.logprobs, place, params.logprobs)
        for place, token_id in enumerate(token_ids, first)
    ]
    listed = params.logprob_token_ids
    if listed is not None:
        assert result.listed is not None
        found = [replace(found[0], top_ids=listed, top_logprobs=result.listed[row][: len(listed)].tolist())]
    return found


def _token_logprobs(token_id: int, logprobs: Logprobs, row: int, asked: int | None) -> TokenLogprobs:
    """The token at a place, and as many of the most likely ones as were `asked` for; -1: all that there are."""
    values: Any = logprobs
    num_top = values.top_ids.shape[1] if asked == -1 else asked or 0
    return TokenLogprobs(
        token_id,
        float(values.logprob[row]),
        int(values.rank[row]),
        values.top_ids[row, :num_top].tolist(),
        values.top_logprobs[row, :num_top].tolist(),
    )
