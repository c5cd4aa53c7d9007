"""How long a request took, and how many guesses at its tokens were right."""

from msgspec import UNSET, UnsetType

from jaxllm.serving.http.body.base import Answer
from jaxllm.serving.text.outputs import RequestMetrics
from jaxllm.serving.text.spec_decode_metrics import SpecDecodeMetrics


class SpeculativeDecoding(Answer, kw_only=True):
    """The drafts of one request; see `SpecDecodeMetrics`."""

    mean_acceptance_length: float | None
    draft_acceptance_rate: float | None
    num_spec_steps: int
    num_accepted_draft_tokens: int
    num_draft_tokens: int
    num_spec_tokens: int
    acceptance_histogram: list[int] | UnsetType = UNSET
    acceptance_histogram_by_draft_length: dict[str, list[int]] | UnsetType = UNSET

    @classmethod
    def of(cls, found: SpecDecodeMetrics) -> "SpeculativeDecoding":
        """The drafts of a finished request."""
        histogram, by_length = found.acceptance_histogram, found.acceptance_histogram_by_draft_length
        return cls(
            mean_acceptance_length=found.mean_acceptance_length,
            draft_acceptance_rate=found.draft_acceptance_rate,
            num_spec_steps=found.num_spec_steps,
            num_accepted_draft_tokens=found.num_accepted_draft_tokens,
            num_draft_tokens=found.num_draft_tokens,
            num_spec_tokens=found.num_spec_tokens,
            acceptance_histogram=UNSET if histogram is None else histogram,
            acceptance_histogram_by_draft_length=(
                UNSET if by_length is None else {str(length): by_length[length] for length in sorted(by_length)}
            ),
        )


class RequestTiming(Answer, kw_only=True):
    """Times of one request, in milliseconds; null where a request did not come that far."""

    time_to_first_token_ms: float | UnsetType | None = UNSET
    """From being first scheduled to the first token."""
    generation_time_ms: float | UnsetType | None = UNSET
    """From the first token to the last."""
    queue_time_ms: float | UnsetType | None = UNSET
    """From arrival until first scheduled."""
    mean_itl_ms: float | UnsetType | None = UNSET
    """Mean time between tokens; null for fewer than two."""
    tokens_per_second: float | UnsetType | None = UNSET
    """Tokens over the time from being first scheduled to the last one."""
    speculative_decoding: SpeculativeDecoding | UnsetType = UNSET
    """With --per-request-spec-decode-metrics."""

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

    @classmethod
    def wanted(
        cls, metrics: RequestMetrics | None, num_tokens: int, drafts: SpecDecodeMetrics | None, *, timed: bool
    ) -> "RequestTiming | UnsetType":
        """What is told of a finished request: its timing if that is wanted, and its drafts if they are known."""
        if not timed and drafts is None:
            return UNSET
        told = cls.of(metrics, num_tokens) if timed else cls()
        told.speculative_decoding = UNSET if drafts is None else SpeculativeDecoding.of(drafts)
        return told


def _between(begin: float | None, end: float | None) -> float | None:
    """Milliseconds."""
    return None if begin is None or end is None else 1e3 * (end - begin)
