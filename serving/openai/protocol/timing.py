"""How long a request took."""

from jaxllm.serving.http.body.base import Answer
from jaxllm.serving.text.outputs import RequestMetrics


class RequestTiming(Answer, kw_only=True):
    """Times of one request, in milliseconds; null where a request did not come that far."""

    time_to_first_token_ms: float | None
    """From being first scheduled to the first token."""
    generation_time_ms: float | None
    """From the first token to the last."""
    queue_time_ms: float | None
    """From arrival until first scheduled."""
    mean_itl_ms: float | None
    """Mean time between tokens; null for fewer than two."""
    tokens_per_second: float | None
    """Tokens over the time from being first scheduled to the last one."""

    @classmethod
    def of(cls, metrics: RequestMetrics | None, num_tokens: int) -> "RequestTiming":
        """The timing of a finished request with so many generated tokens."""
        arrival, scheduled, first, last = (
            (None, None, None, None)
            if metrics is None
            else (metrics.arrival_time, metrics.scheduled_time, metrics.first_token_time, metrics.finished_time)
        )
        generation, inference = _between(first, last), _between(scheduled, last)
        return cls(
            time_to_first_token_ms=_between(scheduled, first),
            generation_time_ms=generation,
            queue_time_ms=_between(arrival, scheduled),
            mean_itl_ms=None if generation is None or num_tokens < 2 else generation / (num_tokens - 1),
            tokens_per_second=1e3 * num_tokens / inference if inference else None,
        )


def _between(begin: float | None, end: float | None) -> float | None:
    """Milliseconds."""
    return None if begin is None or end is None else 1e3 * (end - begin)
