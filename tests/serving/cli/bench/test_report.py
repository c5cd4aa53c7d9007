import pytest

from jaxllm.serving.cli.bench.client import LoadResult
from jaxllm.serving.cli.bench.report import details, summarise, table

ANSWERS = [
    LoadResult(start=10.0, ttft=0.1, itls=[0.2, 0.3], latency=0.6, prompt_tokens=5, output_tokens=3, text="abc"),
    LoadResult(start=10.5, ttft=0.3, itls=[], latency=0.3, prompt_tokens=7, output_tokens=1, text="d"),
    LoadResult(start=11.2, ttft=0.2, itls=[0.1], latency=0.3, prompt_tokens=1, output_tokens=3, text="ef"),
    LoadResult(start=11.0, error="status 500", prompt_tokens=100),
]


def test_counts_and_throughput() -> None:
    result = summarise(ANSWERS, 2.0)
    assert (result["completed"], result["failed"]) == (3, 1)
    assert (result["total_input_tokens"], result["total_output_tokens"]) == (13, 7)
    assert result["request_throughput"] == 1.5
    assert result["output_throughput"] == 3.5
    assert result["total_token_throughput"] == 10.0
    # In the first second the first two answers, in the next the third, with 3 tokens in 2 chunks.
    assert result["max_output_tokens_per_s"] == 4.0
    assert result["max_concurrent_requests"] == 2


def test_latencies_are_in_milliseconds() -> None:
    result = summarise(ANSWERS, 2.0, ["ttft", "tpot", "itl", "e2el"], [50, 99.9])
    assert result["mean_ttft_ms"] == pytest.approx(200)
    assert result["median_ttft_ms"] == pytest.approx(200)
    assert result["std_ttft_ms"] == pytest.approx(81.65, abs=0.01)
    # (0.6 - 0.1) / 2 and (0.3 - 0.2) / 2; the answer of one token has none.
    assert result["mean_tpot_ms"] == pytest.approx(150)
    assert result["mean_itl_ms"] == pytest.approx(200)
    assert result["p50_e2el_ms"] == pytest.approx(300)
    assert result["p99.9_e2el_ms"] == pytest.approx(599.4)


def test_only_what_is_asked_for_is_summarised() -> None:
    result = summarise(ANSWERS, 2.0, ["itl"], [90])
    assert "p90_itl_ms" in result
    assert not any("ttft" in key or "p99" in key for key in result)


def test_nothing_but_failures() -> None:
    result = summarise([ANSWERS[-1]], 1.0)
    assert (result["completed"], result["failed"], result["output_throughput"]) == (0, 1, 0.0)
    assert result["p99_ttft_ms"] == 0.0


def test_requests_that_follow_each_other_do_not_overlap() -> None:
    first, second = (
        LoadResult(start=0.0, latency=1.0, output_tokens=1),
        LoadResult(start=1.0, latency=1.0, output_tokens=1),
    )
    assert summarise([first, second], 2.0)["max_concurrent_requests"] == 1


def test_table() -> None:
    result = {"max_concurrency": None, "request_rate": "inf", **summarise(ANSWERS, 2.0, ["ttft"], [99])}
    lines = table(result, ["ttft"], [99]).splitlines()
    assert "Successful requests:                     3" in lines
    assert "Mean TTFT (ms):                          200.00" in lines
    assert any(line.startswith("P99 TTFT (ms):") for line in lines)
    assert not any("Maximum request concurrency" in line or "RPS" in line for line in lines)


def test_details_keep_the_order() -> None:
    found = details(ANSWERS)
    assert found["output_lens"] == [3, 1, 3, 0]
    assert found["errors"] == ["", "", "", "status 500"]
    assert {len(values) for values in found.values()} == {4}
