"""The figures of a load test, under the names that `vllm bench serve` gives them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxllm.serving.cli.bench.client import LoadResult

METRICS = {
    "ttft": "Time to First Token",
    "tpot": "Time per Output Token (excl. 1st token)",
    "itl": "Inter-token Latency",
    "e2el": "End-to-end Latency",
}
"""What can be summarised, and its heading. All are in milliseconds in results, and in seconds in answers."""

_WIDTH = 50


def summarise(
    answers: Sequence[LoadResult],
    duration: float,
    metrics: Sequence[str] = tuple(METRICS),
    percentiles: Sequence[float] = (99,),
) -> dict[str, Any]:
    """The figures of a test that took `duration` seconds. Those of answers with an error are only counted."""
    good = [answer for answer in answers if not answer.error]
    output_tokens = sum(answer.output_tokens for answer in good)
    input_tokens = sum(answer.prompt_tokens for answer in good)
    result: dict[str, Any] = {
        "duration": duration,
        "completed": len(good),
        "failed": len(answers) - len(good),
        "total_input_tokens": input_tokens,
        "total_output_tokens": output_tokens,
        "request_throughput": len(good) / duration,
        "output_throughput": output_tokens / duration,
        "total_token_throughput": (input_tokens + output_tokens) / duration,
        "tokens_per_chunk": output_tokens / max(sum(len(answer.itls) + 1 for answer in good), 1),
        "max_output_tokens_per_s": _busiest_second(good),
        "max_concurrent_requests": _most_at_once(good),
    }
    for name in metrics:
        values = np.array(_values(name, good) or [0.0]) * 1e3
        result[f"mean_{name}_ms"] = float(values.mean())
        result[f"median_{name}_ms"] = float(np.median(values))
        result[f"std_{name}_ms"] = float(values.std())
        for percentile in percentiles:
            result[f"p{percentile:g}_{name}_ms"] = float(np.percentile(values, percentile))
    return result


def details(answers: Sequence[LoadResult]) -> dict[str, Any]:
    """What every single request did, in the order in which they were made."""
    return {
        "input_lens": [answer.prompt_tokens for answer in answers],
        "output_lens": [answer.output_tokens for answer in answers],
        "ttfts": [answer.ttft for answer in answers],
        "itls": [answer.itls for answer in answers],
        "latencies": [answer.latency for answer in answers],
        "start_times": [answer.start for answer in answers],
        "generated_texts": [answer.text for answer in answers],
        "errors": [answer.error for answer in answers],
    }


def table(result: Mapping[str, Any], metrics: Sequence[str], percentiles: Sequence[float]) -> str:
    """The figures for a person to read."""
    return "\n".join(_lines(result, metrics, percentiles))


def _lines(result: Mapping[str, Any], metrics: Sequence[str], percentiles: Sequence[float]) -> Iterator[str]:
    yield f"{' Serving Benchmark Result ':=^{_WIDTH}}"
    for title, key in (
        ("Successful requests", "completed"),
        ("Failed requests", "failed"),
        ("Maximum request concurrency", "max_concurrency"),
        ("Request rate configured (RPS)", "request_rate"),
        ("Benchmark duration (s)", "duration"),
        ("Total input tokens", "total_input_tokens"),
        ("Total generated tokens", "total_output_tokens"),
        ("Request throughput (req/s)", "request_throughput"),
        ("Output token throughput (tok/s)", "output_throughput"),
        ("Peak output token throughput (tok/s)", "max_output_tokens_per_s"),
        ("Peak concurrent requests", "max_concurrent_requests"),
        ("Tokens per chunk of a stream", "tokens_per_chunk"),
        ("Total token throughput (tok/s)", "total_token_throughput"),
    ):
        if result.get(key) not in (None, "inf"):
            yield _line(title, result[key])
    for name in metrics:
        yield f"{METRICS[name]:-^{_WIDTH}}"
        short = name.upper()
        yield _line(f"Mean {short} (ms)", result[f"mean_{name}_ms"])
        yield _line(f"Median {short} (ms)", result[f"median_{name}_ms"])
        for percentile in percentiles:
            yield _line(f"P{percentile:g} {short} (ms)", result[f"p{percentile:g}_{name}_ms"])
    yield "=" * _WIDTH


def _line(title: str, value: Any) -> str:
    return f"{title + ':':40} " + (f"{value:.2f}" if isinstance(value, float) else str(value))


def _values(name: str, good: Sequence[LoadResult]) -> list[float]:
    """One figure per answer, or for the gaps between tokens all of them."""
    match name:
        case "ttft":
            return [answer.ttft for answer in good]
        case "e2el":
            return [answer.latency for answer in good]
        case "itl":
            return [gap for answer in good for gap in answer.itls]
        case _:
            several = [answer for answer in good if answer.output_tokens > 1]
            return [(answer.latency - answer.ttft) / (answer.output_tokens - 1) for answer in several]


def token_times(answer: LoadResult) -> np.ndarray:
    """When the chunks of an answer came, on its clock."""
    return answer.start + answer.ttft + np.cumsum([0.0, *answer.itls])


def _busiest_second(good: Sequence[LoadResult]) -> float:
    """Most tokens in one second of the clock that starts with the first request."""
    if not good:
        return 0.0
    start = min(answer.start for answer in good)
    counts: dict[int, float] = {}
    for answer in good:
        times = token_times(answer)
        for second in (times - start).astype(int):
            # A chunk may hold several tokens.
            counts[second] = counts.get(second, 0.0) + answer.output_tokens / len(times)
    return max(counts.values())


def _most_at_once(good: Sequence[LoadResult]) -> int:
    """Most requests under way at the same time; one that ends as another begins does not overlap it."""
    changes = sorted([(answer.start + answer.latency, -1) for answer in good] + [(answer.start, 1) for answer in good])
    return int(max(np.cumsum([change for _, change in changes]), default=0))
