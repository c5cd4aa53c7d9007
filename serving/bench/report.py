"""The figures of a load test, under the names that `vllm bench serve` gives them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from jaxllm.errors import ConfigError, nearest
from jaxllm.serving.bench.client import LoadResult
from jaxllm.serving.bench.drafts import DRAFT_TITLES
from jaxllm.serving.bench.measurements import Measurements

METRICS = {
    "ttft": ("TTFT", "Time to First Token"),
    "tpot": ("TPOT", "Time per Output Token (excl. 1st token)"),
    "itl": ("ITL", "Inter-token Latency"),
    "e2el": ("E2EL", "End-to-end Latency"),
    "client_queue_time": ("Client Queue Time", "Client-side Queueing"),
    "e2el_including_client_queue": ("E2EL incl. Client Queue", "Queue-inclusive End-to-end Latency"),
}
"""Headings of measures that can be summarised, by short name. Milliseconds in results, seconds in answers."""
OF_STREAMS = ("ttft", "tpot", "itl", "e2el")
OF_EMBEDDINGS = ("e2el",)
GOODPUT_METRICS = ("ttft", "tpot", "e2el")
"""The constraints of a request."""

_WIDTH = 50
_TITLES = {
    "completed": "Successful requests",
    "failed": "Failed requests",
    "interrupted": "Interrupted requests",
    "max_concurrency": "Maximum request concurrency",
    "request_rate": "Request rate configured (RPS)",
    "duration": "Benchmark duration (s)",
    "total_input_tokens": "Total input tokens",
    "total_output_tokens": "Total generated tokens",
    "request_throughput": "Request throughput (req/s)",
    "input_sequence_throughput": "Input throughput (inputs/s)",
    "request_goodput": "Request goodput (req/s)",
    "output_throughput": "Output token throughput (tok/s)",
    "max_output_tokens_per_s": "Peak output token throughput (tok/s)",
    "max_concurrent_requests": "Peak concurrent requests",
    "tokens_per_chunk": "Tokens per chunk of a stream",
    "total_token_throughput": "Total token throughput (tok/s)",
}
_PROBE_TITLES = {
    "probe_completed": "Probe requests completed",
    "probe_failed": "Probe requests failed",
    "probe_median_e2el_ms": "Median probe E2EL (ms)",
    "probe_p99_e2el_ms": "P99 probe E2EL (ms)",
    "probe_max_e2el_ms": "Max probe E2EL (ms)",
}


def read_goodput(limits: Sequence[str]) -> dict[str, float]:
    """`ttft:500 tpot:50` as numbers (ms). Raises `ConfigError`."""
    found: dict[str, float] = {}
    for limit in limits:
        name, _, value = limit.partition(":")
        if name not in GOODPUT_METRICS:
            raise ConfigError(
                f"goodput={limit!r}: expected one of {', '.join(GOODPUT_METRICS)} and a limit in ms, such as ttft:500"
            )
        try:
            found[name] = float(value)
        except ValueError:
            found[name] = -1.0
        if not found[name] >= 0:
            raise ConfigError(f"goodput={limit!r}: expected a limit in ms after the colon")
    return found


def read_metrics(names: str) -> list[str]:
    """The names of a list with commas. Raises `ConfigError`."""
    found = [part.strip() for part in names.split(",") if part.strip()]
    for name in found:
        if name not in METRICS:
            raise ConfigError(f"percentile_metrics: unknown metric {name!r}{nearest(name, METRICS)}")
    return found


def read_percentiles(numbers: str) -> list[float]:
    """The numbers of a list with commas. Raises `ConfigError`."""
    try:
        found = [float(part) for part in numbers.split(",") if part.strip()]
    except ValueError:
        found = [-1.0]
    if not all(0 <= percentile <= 100 for percentile in found):
        raise ConfigError(f"metric_percentiles={numbers!r}: expected numbers from 0 to 100")
    return found


def summarise(
    measured: Measurements,
    duration: float,
    metrics: Sequence[str] = OF_STREAMS,
    percentiles: Sequence[float] = (99,),
    goodput: Mapping[str, float] | None = None,
) -> dict[str, Any]:
    """The figures of a test that took `duration` seconds. Answers with an error are only counted.

    `goodput` holds limits (ms); without, there is none.
    """
    outputs, inputs = sum(measured.output_tokens), sum(measured.input_tokens)
    return {
        **_counts(measured, duration),
        "total_output_tokens": outputs,
        "request_goodput": None if not goodput else _good(measured, goodput) / duration,
        "output_throughput": outputs / duration,
        "total_token_throughput": (inputs + outputs) / duration,
        "tokens_per_chunk": outputs / max(measured.chunks, 1),
        "max_output_tokens_per_s": measured.busiest_second(),
        "max_concurrent_requests": measured.peak_concurrency(),
        # Only audio has one; vLLM writes it for all.
        "rtfx": 0.0,
        **_latencies(measured, metrics, percentiles),
    }


def summarise_embeddings(
    measured: Measurements,
    duration: float,
    metrics: Sequence[str] = OF_EMBEDDINGS,
    percentiles: Sequence[float] = (99,),
) -> dict[str, Any]:
    """The report of requests without output tokens."""
    inputs = sum(measured.inputs)
    return {
        **_counts(measured, duration),
        "total_input_sequences": inputs,
        "input_sequence_throughput": inputs / duration,
        "total_token_throughput": sum(measured.input_tokens) / duration,
        **_latencies(measured, metrics, percentiles),
    }


def _counts(measured: Measurements, duration: float) -> dict[str, Any]:
    return {
        "duration": duration,
        "completed": measured.completed,
        "failed": measured.failed,
        "total_input_tokens": sum(measured.input_tokens),
        "request_throughput": measured.completed / duration,
    }


def _good(measured: Measurements, limits: Mapping[str, float]) -> int:
    """How many answers keep all limits."""
    seconds = {"ttft": measured.ttfts, "tpot": measured.tpots, "e2el": measured.latencies}
    kept = [np.asarray(seconds[name]) * 1e3 <= limit for name, limit in limits.items()]
    return int(np.logical_and.reduce(kept).sum())


def _latencies(measured: Measurements, metrics: Sequence[str], percentiles: Sequence[float]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in metrics:
        seconds = values_of(name, measured)
        values = (seconds if len(seconds) else np.zeros(1)) * 1e3
        found[f"mean_{name}_ms"] = float(values.mean())
        found[f"median_{name}_ms"] = float(np.median(values))
        found[f"std_{name}_ms"] = float(values.std())
        for percentile in percentiles:
            found[f"p{format_percentile(percentile)}_{name}_ms"] = float(np.percentile(values, percentile))
    return found


def format_percentile(percentile: float) -> str:
    """A percentile in the name of a figure: `99`, `99.9`."""
    return str(int(percentile)) if percentile == int(percentile) else str(percentile)


def values_of(name: str, measured: Measurements) -> np.ndarray:
    """One figure (s) per answer, or for the gaps between tokens one per gap."""
    match name:
        case "ttft":
            return np.asarray(measured.ttfts)
        case "itl":
            return np.asarray(measured.gaps.values)
        case "tpot":
            return measured.tpots[np.asarray(measured.output_tokens) > 1]
        case "client_queue_time":
            return np.asarray(measured.queue_times)
        case "e2el_including_client_queue":
            return np.asarray(measured.latencies) + np.asarray(measured.queue_times)
        case _:
            return np.asarray(measured.latencies)


def probe_figures(answers: Sequence[LoadResult]) -> dict[str, Any]:
    """The figures of the requests alongside the load, if any went well."""
    latencies = [answer.latency * 1e3 for answer in answers if not answer.error]
    if not latencies:
        return {}
    return {
        "probe_completed": len(latencies),
        "probe_failed": len(answers) - len(latencies),
        "probe_median_e2el_ms": float(np.median(latencies)),
        "probe_p99_e2el_ms": float(np.percentile(latencies, 99)),
        "probe_max_e2el_ms": max(latencies),
    }


def details(answers: Mapping[int, LoadResult], *, of_streams: bool = True) -> dict[str, Any]:
    """The outcome of every single request, in the order in which they were made."""
    ordered = [answers[index] for index in sorted(answers)]
    found: dict[str, Any] = {
        "input_lens": [answer.prompt_tokens for answer in ordered],
        "latencies": [answer.latency for answer in ordered],
        "start_times": [answer.start for answer in ordered],
        "queue_times": [answer.queue_time for answer in ordered],
        "errors": [answer.error for answer in ordered],
    }
    if of_streams:
        found |= {
            "output_lens": [answer.output_tokens for answer in ordered],
            "ttfts": [answer.ttft for answer in ordered],
            "itls": [answer.itls for answer in ordered],
            "generated_texts": [answer.text for answer in ordered],
        }
    return found


def table(result: Mapping[str, Any], metrics: Sequence[str], percentiles: Sequence[float]) -> str:
    """The figures for a person to read."""
    return "\n".join(_lines(result, metrics, percentiles))


def _lines(result: Mapping[str, Any], metrics: Sequence[str], percentiles: Sequence[float]) -> Iterator[str]:
    yield f"{' Serving Benchmark Result ':=^{_WIDTH}}"
    for key, title in _TITLES.items():
        if result.get(key) not in (None, "inf"):
            yield _line(title, result[key])
    if "probe_completed" in result:
        yield f"{'Probe Requests':-^{_WIDTH}}"
        yield from (_line(title, result[key]) for key, title in _PROBE_TITLES.items())
    if "spec_decode_num_drafts" in result:
        yield f"{'Speculative Decoding':-^{_WIDTH}}"
        yield from (_line(title, result[key]) for key, title in DRAFT_TITLES.items())
        for position, rate in enumerate(result["spec_decode_per_position_acceptance_rates"]):
            yield _line(f"  Position {position} (%)", 100 * rate)
    for name in metrics:
        short, heading = METRICS[name]
        yield f"{heading:-^{_WIDTH}}"
        yield _line(f"Mean {short} (ms)", result[f"mean_{name}_ms"])
        yield _line(f"Median {short} (ms)", result[f"median_{name}_ms"])
        for percentile in percentiles:
            word = format_percentile(percentile)
            yield _line(f"P{word} {short} (ms)", result[f"p{word}_{name}_ms"])
    yield "=" * _WIDTH


def _line(title: str, value: Any) -> str:
    return f"{title + ':':40} " + (f"{value:.2f}" if isinstance(value, float) else str(value))
