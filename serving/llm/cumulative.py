"""Results that say all so far, made of results that say what is new."""

from dataclasses import replace

from jaxllm.requests.sampling_params import RequestOutputKind, SamplingParams
from jaxllm.serving.llm.output_stream import merge
from jaxllm.serving.text.outputs import RequestOutput


def wants_stream(params: SamplingParams) -> bool:
    """Whether results are to come before the end. Raises `RequestError` where deltas are asked for that cannot be."""
    if params.output_kind is RequestOutputKind.DELTA:
        params.check_streamable()
    return params.output_kind is not RequestOutputKind.FINAL_ONLY and params.is_streamable


def wants_all_so_far(params: SamplingParams) -> bool:
    """Whether each result is to repeat those before it."""
    return params.output_kind is RequestOutputKind.CUMULATIVE and wants_stream(params)


class Cumulative:
    """The results of one request so far."""

    def __init__(self) -> None:
        self._whole: RequestOutput | None = None

    def add(self, delta: RequestOutput) -> RequestOutput:
        """All so far, with what is new: every sequence that has begun, in order. It is the caller's own."""
        if self._whole is None:
            self._whole = _copy(delta)
        else:
            merge(self._whole, delta)
        return _copy(self._whole)


def _copy(output: RequestOutput) -> RequestOutput:
    """A copy of the result and its sequences; `merge` replaces the lists in them, and never changes them."""
    completions = sorted(output.outputs, key=lambda each: each.index)
    return replace(output, outputs=[replace(each) for each in completions])
