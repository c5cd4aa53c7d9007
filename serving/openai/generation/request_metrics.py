"""The `metrics` of an answer: times and drafts of a request with a single choice."""

from msgspec import UNSET, UnsetType

from jaxllm.serving.openai.generation.events import EventFrame, UsageCounter
from jaxllm.serving.openai.protocol.timing import RequestTiming
from jaxllm.serving.text.outputs import RequestOutput


class PerRequestMetrics:
    """Writes the metrics of one request; those with several choices have none."""

    def __init__(self, counter: UsageCounter, *, is_single: bool, timed: bool) -> None:
        """`counter` has counted the request's tokens when it ends; `timed`: times are wanted, not only drafts."""
        self._counter = counter
        self._is_single = is_single
        self._timed = timed
        self.last: RequestOutput | None = None
        """The latest result of a stream."""

    def of(self, last: RequestOutput | None) -> RequestTiming | UnsetType:
        """The metrics of a request by its last result; unset where there is nothing to tell."""
        if not self._is_single:
            return UNSET
        drafts = last.outputs[-1].spec_decode_metrics if last is not None and last.outputs else None
        times = None if last is None else last.metrics
        return RequestTiming.wanted(times, self._counter.usage.completion_tokens, drafts, timed=self._timed)

    def end(self, frame: EventFrame) -> bytes:
        """The event at the end of a stream: the usage, and the metrics if there are any."""
        metrics = self.of(self.last)
        return frame.end() if metrics is UNSET else frame.end(metrics=metrics)
