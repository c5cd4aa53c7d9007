import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxllm.errors import ConfigError
from jaxllm.serving.bench.client import LoadResult
from jaxllm.serving.bench.measurements import Gaps, Measurements
from jaxllm.serving.bench.report import details, probe_figures, read_goodput, summarise, summarise_embeddings, table

ANSWERS = [
    LoadResult(start=10.0, ttft=0.1, itls=[0.2, 0.3], latency=0.6, prompt_tokens=5, output_tokens=3, text="abc"),
    LoadResult(start=10.5, ttft=0.3, itls=[], latency=0.3, prompt_tokens=7, output_tokens=1, text="d"),
    LoadResult(start=11.2, ttft=0.2, itls=[0.1], latency=0.3, prompt_tokens=1, output_tokens=3, text="ef"),
    LoadResult(start=11.0, error="status 500", prompt_tokens=100),
]

VLLM_FIELDS = {
    "duration", "completed", "failed", "total_input_tokens", "total_output_tokens", "request_throughput",
    "request_goodput", "output_throughput", "total_token_throughput", "max_output_tokens_per_s",
    "max_concurrent_requests", "rtfx",
    *(f"{kind}_{name}_ms" for kind in ("mean", "median", "std", "p99") for name in ("ttft", "tpot", "itl", "e2el")),
}  # fmt: skip
"""The figures that `vllm bench serve` writes (v0.33, `vllm/benchmarks/serve.py`), alongside its settings."""
VLLM_DETAILS = {
    "input_lens", "output_lens", "ttfts", "itls", "latencies", "start_times", "queue_times", "generated_texts",
    "errors",
}  # fmt: skip
VLLM_EMBEDDING_FIELDS = {
    "duration", "completed", "total_input_tokens", "total_input_sequences", "request_throughput",
    "input_sequence_throughput", "total_token_throughput", "mean_e2el_ms", "median_e2el_ms", "std_e2el_ms",
    "p99_e2el_ms",
}  # fmt: skip


def measured(answers: Sequence[LoadResult], *, keep: bool = False) -> Measurements:
    found = Measurements(keep_answers=keep)
    for index, answer in enumerate(answers):
        found.add(index, answer)
    return found


def test_the_fields_are_vllms() -> None:
    result = summarise(measured(ANSWERS), 2.0)
    assert result.keys() - VLLM_FIELDS == {"tokens_per_chunk"}
    assert result.keys() >= VLLM_FIELDS
    kept = measured(ANSWERS, keep=True).answers
    assert kept is not None
    assert details(kept).keys() == VLLM_DETAILS
    assert summarise_embeddings(measured(ANSWERS), 2.0).keys() - {"failed"} == VLLM_EMBEDDING_FIELDS


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_counts_and_throughput(order: Sequence[int]) -> None:
    result = summarise(measured([ANSWERS[index] for index in order]), 2.0)
    assert (result["completed"], result["failed"]) == (3, 1)
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (13, 7)
    assert result["request_throughput"] == 1.5
    assert result["output_throughput"] == 3.5
    assert result["total_token_throughput"] == 10.0
    # In the first second the first two answers, in the next the third, with 3 tokens in 2 chunks.
    assert result["max_output_tokens_per_s"] == pytest.approx(4.0)
    assert result["max_concurrent_requests"] == 2
    assert result["request_goodput"] is None


def test_latencies_are_in_milliseconds() -> None:
    result = summarise(measured(ANSWERS), 2.0, ["ttft", "tpot", "itl", "e2el"], [50, 99.9])
    assert result["mean_ttft_ms"] == pytest.approx(200)
    assert result["median_ttft_ms"] == pytest.approx(200)
    assert result["std_ttft_ms"] == pytest.approx(81.65, abs=0.01)
    # (0.6 - 0.1) / 2 and (0.3 - 0.2) / 2; the answer of one token has none.
    assert result["mean_tpot_ms"] == pytest.approx(150)
    assert result["mean_itl_ms"] == pytest.approx(200)
    assert result["p50_e2el_ms"] == pytest.approx(300)
    assert result["p99.9_e2el_ms"] == pytest.approx(599.4)


SECONDS = st.floats(0.001, 2.0)
STREAMS = st.builds(
    lambda start, ttft, itls, queue: LoadResult(
        start=start, ttft=ttft, itls=itls, latency=ttft + sum(itls), output_tokens=1 + len(itls), queue_time=queue
    ),
    SECONDS, SECONDS, st.lists(SECONDS, max_size=5), SECONDS,
)  # fmt: skip


@given(st.lists(STREAMS, min_size=1, max_size=12), st.lists(st.floats(0, 100), min_size=1, max_size=3))
def test_percentiles_and_goodput_are_numpys(answers: list[LoadResult], percentiles: list[float]) -> None:
    limits = {"ttft": 900.0, "tpot": 700.0, "e2el": 3000.0}
    metrics = ["ttft", "itl", "e2el", "client_queue_time", "e2el_including_client_queue"]
    result = summarise(measured(answers), 4.0, metrics, percentiles, limits)
    values = {
        "ttft": [answer.ttft for answer in answers],
        "itl": [gap for answer in answers for gap in answer.itls] or [0.0],
        "e2el": [answer.latency for answer in answers],
        "client_queue_time": [answer.queue_time for answer in answers],
        "e2el_including_client_queue": [answer.latency + answer.queue_time for answer in answers],
    }
    for name in metrics:
        for percentile in percentiles:
            word = str(int(percentile)) if percentile == int(percentile) else str(percentile)
            assert result[f"p{word}_{name}_ms"] == pytest.approx(np.percentile(values[name], percentile) * 1e3)
        assert result[f"std_{name}_ms"] == pytest.approx(np.std(values[name]) * 1e3, abs=1e-6)
    tpots = [(each.latency - each.ttft) / max(each.output_tokens - 1, 1) for each in answers]
    good = [each.ttft <= 0.9 and tpot <= 0.7 and each.latency <= 3.0 for each, tpot in zip(answers, tpots, strict=True)]
    assert result["request_goodput"] == sum(good) / 4.0


@given(st.lists(STREAMS, min_size=1, max_size=12))
def test_every_token_is_counted_in_some_second(answers: list[LoadResult]) -> None:
    found = measured(answers)
    assert found.token_counts.sum() == pytest.approx(sum(answer.output_tokens for answer in answers))
    # An oracle that looks at every moment at which something changes.
    moments = [answer.start for answer in answers]
    under_way = [sum(each.start <= now < each.start + each.latency for each in answers) for now in moments]
    assert found.peak_concurrency() == max(under_way)


@given(st.lists(st.lists(SECONDS, max_size=4), max_size=60))
def test_gaps_are_thinned_evenly_and_never_too_many(answers: list[list[float]]) -> None:
    gaps = Gaps(most=16)
    for itls in answers:
        gaps.add(itls)
        assert len(gaps.values) <= 16
    strides = [1, 2, 4, 8, 16, 32, 64]
    assert any(list(gaps.values) == [gap for itls in answers[::stride] for gap in itls] for stride in strides)


def test_only_what_is_asked_for_is_summarised() -> None:
    result = summarise(measured(ANSWERS), 2.0, ["itl"], [90])
    assert "p90_itl_ms" in result
    assert not any("ttft" in key or "p99" in key for key in result)


def test_nothing_but_failures() -> None:
    result = summarise(measured([ANSWERS[-1]]), 1.0)
    assert (result["completed"], result["failed"], result["output_throughput"]) == (0, 1, 0.0)
    assert result["p99_ttft_ms"] == 0.0
    assert (result["max_output_tokens_per_s"], result["max_concurrent_requests"]) == (0.0, 0)


def test_the_first_errors_are_kept() -> None:
    found = measured([LoadResult(error=f"error {number}") for number in range(50)])
    assert found.failed == 50
    assert found.errors == [f"error {number}" for number in range(10)]


def test_requests_that_follow_each_other_do_not_overlap() -> None:
    first, second = (
        LoadResult(start=0.0, latency=1.0, output_tokens=1),
        LoadResult(start=1.0, latency=1.0, output_tokens=1),
    )
    assert summarise(measured([first, second]), 2.0)["max_concurrent_requests"] == 1


def test_table() -> None:
    settings = {"max_concurrency": None, "request_rate": "inf"}
    result = {**settings, **summarise(measured(ANSWERS), 2.0, ["ttft"], [99])}
    lines = table(result, ["ttft"], [99]).splitlines()
    assert "Successful requests:                     3" in lines
    assert "Mean TTFT (ms):                          200.00" in lines
    assert any(line.startswith("P99 TTFT (ms):") for line in lines)
    assert not any("Maximum request concurrency" in line or "RPS" in line or "goodput" in line for line in lines)


def test_table_of_embeddings_and_probes() -> None:
    result = {**summarise_embeddings(measured(ANSWERS), 2.0), **probe_figures(ANSWERS)}
    lines = table(result, ["e2el"], [99]).splitlines()
    assert "Input throughput (inputs/s):             1.50" in lines
    assert "Probe requests failed:                   1" in lines
    assert not any("generated" in line for line in lines)


def test_details_keep_the_order() -> None:
    found = details({3: ANSWERS[3], 0: ANSWERS[0], 2: ANSWERS[2], 1: ANSWERS[1]})
    assert found["output_lens"] == [3, 1, 3, 0]
    assert found["errors"] == ["", "", "", "status 500"]
    assert {len(values) for values in found.values()} == {4}


def test_limits_of_goodput() -> None:
    assert read_goodput(["ttft:500", "tpot:50.5"]) == {"ttft": 500.0, "tpot": 50.5}
    for wrong in ("itl:3", "ttft", "ttft:x", "ttft:-1", "e2el:nan"):
        with pytest.raises(ConfigError, match="goodput="):
            read_goodput([wrong])
