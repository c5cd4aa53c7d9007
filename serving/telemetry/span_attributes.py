"""The attributes of a request's span, under the names that vLLM's `SpanAttributes` has for them."""

from typing import Any

from jaxllm.serving.text.tracing import TracedRequest

_PARAMETERS = (
    ("gen_ai.request.max_tokens", "max_tokens"),
    ("gen_ai.request.temperature", "temperature"),
    ("gen_ai.request.top_p", "top_p"),
    ("gen_ai.request.n", "n"),
)
"""Names, and the fields of a request's parameters; as in vLLM, what is 0 or missing is left out."""


def attributes_of(request: TracedRequest) -> dict[str, Any]:
    """The attributes of a request that ended; times are in seconds.

    Times that a request did not come to are left out. Of several sequences they are from the first of a kind to the
    last.
    """
    sequences = request.sequences
    scheduled = min((each.scheduled for each in sequences if each.scheduled is not None), default=None)
    first = min((each.first_token for each in sequences if each.first_token is not None), default=None)
    last = max((each.last_token for each in sequences if each.last_token is not None), default=None)
    times = {
        "gen_ai.latency.time_to_first_token": _between(request.arrival, first),
        "gen_ai.latency.e2e": request.ended - request.arrival,
        "gen_ai.latency.time_in_queue": _between(request.arrival, scheduled),
        "gen_ai.latency.time_in_model_prefill": _between(scheduled, first),
        "gen_ai.latency.time_in_model_decode": _between(first, last),
        "gen_ai.latency.time_in_model_inference": _between(scheduled, last),
    }
    given = {name: getattr(request.params, field, None) for name, field in _PARAMETERS}
    return {
        "gen_ai.usage.prompt_tokens": request.prompt_tokens,
        "gen_ai.usage.completion_tokens": sum(each.num_tokens for each in sequences),
        "gen_ai.usage.cache_read.input_tokens": request.cached_tokens,
        "gen_ai.usage.num_sequences": len(sequences),
        "gen_ai.response.finish_reasons": [each.reason for each in sequences],
        **{name: seconds for name, seconds in times.items() if seconds is not None},
        **{name: value for name, value in given.items() if value},
    }


def _between(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else end - begin
