"""/metrics agrees with what was observed; Prometheus' own parser reads it."""

import re
import time
from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from benchmarks.shared.counting import counting_calls
from jaxllm.config.engine_info import EngineInfo, StageInfo
from jaxllm.engine.stats import StepStats
from jaxllm.kv.lifetimes import PageLife
from jaxllm.kv.tiers.counts import OffloadCounts
from jaxllm.requests.request import FinishReason
from jaxllm.serving.telemetry.catalogue import METRICS
from jaxllm.serving.telemetry.engine_metrics import EngineState
from jaxllm.serving.telemetry.http import HTTP_METRICS
from jaxllm.serving.telemetry.metrics import Metrics
from jaxllm.serving.telemetry.metrics import ProcessMeasured as Measured
from jaxllm.serving.text.measurements import EndReason, FinishedRequest, Measurements

PAGE = Path(__file__).resolve().parents[3] / "docs" / "metrics.md"
LABELS = {"model_name": "small", "engine": "0"}

# Names as dashboards for vLLM ask for them.
VLLM = """
num_requests_running num_requests_waiting kv_cache_usage_perc gpu_cache_usage_perc cache_config_info
prefix_cache_queries_total prefix_cache_hits_total gpu_prefix_cache_queries_total gpu_prefix_cache_hits_total
num_preemptions_total prompt_tokens_total generation_tokens_total request_success_total iteration_tokens_total_bucket
time_to_first_token_seconds_bucket inter_token_latency_seconds_bucket time_per_output_token_seconds_bucket
request_time_per_output_token_seconds_bucket e2e_request_latency_seconds_bucket e2e_request_latency_seconds_sum
e2e_request_latency_seconds_count request_queue_time_seconds_sum request_inference_time_seconds_bucket
request_prefill_time_seconds_sum request_decode_time_seconds_sum request_prompt_tokens_bucket
request_generation_tokens_bucket request_max_num_generation_tokens_bucket request_params_n_bucket
request_params_max_tokens_bucket num_requests_waiting_by_reason request_num_preemptions_bucket
prompt_tokens_by_source_total prompt_tokens_cached_by_source_total
prompt_tokens_cached_total request_prefill_kv_computed_tokens_bucket estimated_flops_per_gpu_total
estimated_read_bytes_per_gpu_total estimated_write_bytes_per_gpu_total kv_block_lifetime_seconds_bucket
kv_block_idle_before_evict_seconds_bucket kv_block_reuse_gap_seconds_bucket
"""


INFO = EngineInfo(
    kv_cache_dtype="float32",
    model="small", model_folder=".", vocab_size=400, eos_token_ids=(9,), max_model_len=1200, max_num_seqs=8,
    max_num_batched_tokens=64, max_logprobs=20, num_pages=33, block_size=16, enable_prefix_caching=True,
    dtype="float32", device_kind="cpu", num_devices=1, num_shapes=4, max_loras=2, peaks=(2e12, 3e11),
)  # fmt: skip


STAGES = (
    StageInfo(start=0, stop=1, num_devices=1, weight_bytes=20, cache_bytes=2),
    StageInfo(start=1, stop=4, num_devices=1, weight_bytes=30, cache_bytes=6),
)


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(INFO, "small")


def families(metrics: Metrics) -> dict[str, Metric]:
    """All metrics of the engine by name; those of the process are left out."""
    body, content_type = metrics.exposition()
    assert content_type == "text/plain; version=0.0.4; charset=utf-8"
    found = {family.name: family for family in parse_text(body.decode())}
    return {name: family for name, family in found.items() if ":" in name}


def samples(metrics: Metrics) -> dict[tuple[str, str], float]:
    """Values by name, without prefix, and by the label that not every sample has ("" where there is none)."""
    found = {}
    for family in families(metrics).values():
        for sample in family.samples:
            own = [value for label, value in sample.labels.items() if label not in LABELS]
            found[sample.name.removeprefix("jaxllm:"), own[0] if own else ""] = sample.value
    return found


def finished(reason: str = "stop", **known: Any) -> FinishedRequest:
    some: dict[str, Any] = {
        "e2e_seconds": 2.0, "queue_seconds": 0.25, "prefill_seconds": 0.5, "decode_seconds": 1.0, "prompt_tokens": 100,
        "generation_tokens": 5, "max_tokens": 20, "n": 1, "max_generation_tokens": 5,
    }  # fmt: skip
    return FinishedRequest(reason, **{**some, **known})


def test_adapters_by_name(metrics: Metrics) -> None:
    metrics.observe(
        StepStats(running_loras=("a", "b"), waiting_loras=("c",), num_lora_reads=3, num_lora_writes=4), None
    )
    (family,) = [each for each in metrics.collect() if each.name == "jaxllm:lora_requests_info"]
    (sample,) = family.samples
    assert sample.labels == {
        **LABELS,
        "max_lora": "2",
        "running_lora_adapters": "a,b",
        "waiting_lora_adapters": "c",
    }
    assert time.time() - 60 < sample.value <= time.time()
    found = samples(metrics)
    assert (found["lora_reads_total", ""], found["lora_slot_writes_total", ""]) == (3, 4)
    assert not families(Metrics(replace(INFO, max_loras=0), "small"))["jaxllm:lora_requests_info"].samples


def test_state_and_totals(metrics: Metrics) -> None:
    metrics.observe(StepStats(3, 4, 0.5, prefix_queries=100, prefix_hits=48, num_preemptions=2), None)
    metrics.observe(
        StepStats(
            2, 5, 0.75, prefix_queries=150, prefix_hits=64, num_preemptions=3, num_compilations=1, num_snapshots=7
        ),
        None,
    )
    found = samples(metrics)
    assert found["num_requests_running", ""] == 2
    assert found["num_requests_waiting", ""] == 5
    assert found["kv_cache_usage_perc", ""] == found["gpu_cache_usage_perc", ""] == 0.75
    assert found["prefix_cache_queries_total", ""] == found["gpu_prefix_cache_queries_total", ""] == 150
    assert found["prefix_cache_hits_total", ""] == found["gpu_prefix_cache_hits_total", ""] == 64
    assert found["num_preemptions_total", ""] == 3
    assert found["state_snapshots", ""] == 7
    assert found["compilations_after_warmup_total", ""] == 1


def test_work_of_devices_and_lives_of_pages_add_up_over_steps_and_processes(metrics: Metrics) -> None:
    step = StepStats(
        num_rows=1, num_tokens=1, bucket_tokens=1, num_steps=1, work=(1e30, 20.0, 3.0),
        page_lives=(PageLife(10.0, 4.0, (1.0, 2.0)),),
    )  # fmt: skip
    metrics.observe(step.merged(replace(step, page_lives=())), None)
    joined = Metrics(INFO, "small").with_others([], msgspec.msgpack.decode(
        msgspec.msgpack.encode(metrics.engine_states()), type=list[EngineState]
    ))  # fmt: skip
    found = samples(joined)
    assert found["estimated_flops_per_gpu_total", ""] == 2e30
    assert found["estimated_read_bytes_per_gpu_total", ""] == 40
    assert found["estimated_write_bytes_per_gpu_total", ""] == 6
    assert (found["peak_flops_per_gpu", ""], found["peak_bytes_per_second_per_gpu", ""]) == (2e12, 3e11)
    assert (found["kv_block_lifetime_seconds_count", ""], found["kv_block_lifetime_seconds_sum", ""]) == (1, 10)
    assert found["kv_block_idle_before_evict_seconds_sum", ""] == 4
    assert (found["kv_block_reuse_gap_seconds_count", ""], found["kv_block_reuse_gap_seconds_sum", ""]) == (2, 3)


def test_steps(metrics: Metrics) -> None:
    step = StepStats(num_rows=2, num_tokens=12, bucket_tokens=16, step_seconds=0.004, num_steps=1)
    metrics.observe(step, None)
    metrics.observe(StepStats(), None)
    found = samples(metrics)
    assert found["iteration_tokens_total_bucket", "8.0"] == 0
    assert found["iteration_tokens_total_bucket", "16.0"] == found["iteration_tokens_total_count", ""] == 1
    assert found["iteration_tokens_total_sum", ""] == 12
    assert (found["step_seconds_count", ""], found["step_seconds_sum", ""]) == (1, 0.004)
    assert (found["batch_fill_count", ""], found["batch_fill_sum", ""]) == (1, 0.75)
    merged = step.merged(replace(step, num_tokens=20, step_seconds=0.008))
    metrics.observe(merged, None)
    found = samples(metrics)
    assert (found["iteration_tokens_total_count", ""], found["iteration_tokens_total_sum", ""]) == (3, 44)
    assert found["step_seconds_sum", ""] == pytest.approx(0.016)
    assert found["batch_fill_count", ""] == 3


def test_steps_by_shape_beside_the_plan() -> None:
    metrics = Metrics(replace(INFO, planned_step_seconds={16: 0.003, 1: 0.001}), "small")
    step = StepStats(num_rows=2, num_tokens=12, bucket_tokens=16, step_seconds=0.004, num_steps=1)
    metrics.observe(step, None)
    metrics.observe(StepStats(), None)
    one = replace(step, num_tokens=1, bucket_tokens=1, step_seconds=0.002)
    # Steps that arrive as one, an idle one among them.
    metrics.observe(step.merged(StepStats()).merged(one).merged(replace(step, step_seconds=0.016)), None)
    restarted = Metrics(INFO, "small").with_others([], metrics.engine_states())
    for found in (samples(metrics), samples(restarted)):
        assert found["step_seconds_by_shape_count", "16"] == 3
        assert found["step_seconds_by_shape_sum", "16"] == pytest.approx(0.004 + 0.004 + 0.016)
        assert (found["step_seconds_by_shape_count", "1"], found["step_seconds_by_shape_sum", "1"]) == (1, 0.002)
        assert found["step_seconds_count", ""] == 4
    found = samples(metrics)
    assert found["planned_step_seconds", "16"] == 0.003
    assert found["planned_step_seconds", "1"] == 0.001
    assert ("planned_step_seconds", "1") not in samples(restarted), "of a chip that nobody knows"


def test_the_last_token_of_a_sequence_counts_in_its_step(metrics: Metrics) -> None:
    metrics.observe(StepStats(num_tokens=12, bucket_tokens=16, num_steps=1, num_last=3, preemptions=(0, 2, 7)), None)
    found = samples(metrics)
    assert (found["iteration_tokens_total_sum", ""], found["batch_fill_sum", ""]) == (15, 0.75)
    assert found["request_num_preemptions_bucket", "1.0"] == 1
    assert found["request_num_preemptions_bucket", "2.0"] == 2
    assert (found["request_num_preemptions_count", ""], found["request_num_preemptions_sum", ""]) == (3, 9)


def test_why_requests_wait(metrics: Metrics) -> None:
    metrics.observe(StepStats(num_waiting=5, num_deferred=2), None)
    found = samples(metrics)
    assert found["num_requests_waiting_by_reason", "capacity"] == 3
    assert found["num_requests_waiting_by_reason", "deferred"] == 2
    # The engine ends: who knows of them now are the processes that had asked it.
    metrics.observe(StepStats(), None)
    for count in (9, 3):
        metrics.set_without_engine([count])
    joined = metrics.with_others([Measured([], without_engine=[4])])
    for found, waiting in ((samples(metrics), 3), (samples(joined), 7)):
        assert found["num_requests_waiting", ""] == found["num_requests_waiting_by_reason", "engine_restart"] == waiting


def test_tokens_and_their_times(metrics: Metrics) -> None:
    metrics.observe(None, Measurements(30, 7, [0.03, 0.3], [0.02] * 4 + [0.6], [], cached_tokens=16))
    found = samples(metrics)
    assert found["prompt_tokens_cached_total", ""] == found["prompt_tokens_by_source_total", "local_cache_hit"] == 16
    assert found["prompt_tokens_by_source_total", "local_compute"] == 14
    assert (found["prompt_tokens_total", ""], found["generation_tokens_total", ""]) == (30, 7)
    assert found["time_to_first_token_seconds_bucket", "0.04"] == 1
    assert found["time_to_first_token_seconds_bucket", "0.5"] == found["time_to_first_token_seconds_count", ""] == 2
    for name in ("inter_token_latency_seconds", "time_per_output_token_seconds"):
        assert found[f"{name}_bucket", "0.025"] == 4
        assert found[f"{name}_count", ""] == 5
        assert found[f"{name}_sum", ""] == pytest.approx(0.68)


def test_finished_requests(metrics: Metrics) -> None:
    both = [
        finished("length", n=None, max_generation_tokens=None, cached_tokens=32),
        finished(n=2, max_generation_tokens=7, generation_tokens=1, decode_seconds=0.0, max_tokens=None),
    ]
    metrics.observe(None, Measurements(finished=both))
    found = samples(metrics)
    reasons = {reason: found["request_success_total", reason] for reason in ("stop", "length", "abort", "error")}
    assert reasons == {"stop": 1, "length": 1, "abort": 0, "error": 0}
    expected = {
        "e2e_request_latency_seconds": (2, 4.0),
        "request_queue_time_seconds": (2, 0.5),
        "request_prefill_time_seconds": (2, 1.0),
        "request_decode_time_seconds": (2, 1.0),
        "request_inference_time_seconds": (2, 2.0),
        "request_time_per_output_token_seconds": (1, 0.25),
        "request_prompt_tokens": (2, 200),
        "request_prefill_kv_computed_tokens": (2, 168),
        "request_generation_tokens": (2, 6),
        "request_max_num_generation_tokens": (1, 7),
        "request_params_n": (1, 2),
        "request_params_max_tokens": (2, 20 + 1100),
    }
    assert {name: (found[f"{name}_count", ""], found[f"{name}_sum", ""]) for name in expected} == expected
    assert found["request_prompt_tokens_bucket", "50.0"] == 0
    assert found["request_prompt_tokens_bucket", "100.0"] == 2
    assert found["request_params_max_tokens_bucket", "1000.0"] == 1
    assert ("request_params_max_tokens_bucket", "2000.0") not in found, "longer than the model's longest"


@pytest.mark.parametrize("reason", ["repetition", *get_args(FinishReason), *get_args(EndReason)])
def test_every_end_is_counted(metrics: Metrics, reason: str) -> None:
    metrics.observe(None, Measurements(finished=[finished(reason)]))
    assert samples(metrics)["request_success_total", reason] == 1


def test_aborted_requests_are_counted_and_not_timed(metrics: Metrics) -> None:
    never_ran = finished("abort", queue_seconds=None, prefill_seconds=None, decode_seconds=None)
    metrics.observe(None, Measurements(finished=[finished("abort"), never_ran, finished("error")]))
    found = samples(metrics)
    assert (found["request_success_total", "abort"], found["request_success_total", "error"]) == (2, 1)
    assert found["e2e_request_latency_seconds_count", ""] == 0


@settings(max_examples=25)
@given(st.lists(st.tuples(*[st.integers(0, 1000)] * 4), min_size=1, max_size=8))
def test_counters_never_decrease(totals: list[tuple[int, int, int, int]]) -> None:
    """Even when an engine starts anew, and its totals with it."""
    metrics = Metrics(INFO, "small")
    before = samples(metrics)
    for queries, hits, preemptions, compilations in totals:
        stats = StepStats(
            prefix_queries=queries, prefix_hits=hits, num_preemptions=preemptions, num_compilations=compilations
        )
        metrics.observe(stats, Measurements(1, 2, [0.5], [0.5], [finished()]))
        after = samples(metrics)
        assert after.keys() == before.keys()
        assert all(after[key] >= value for key, value in before.items() if re.search("_(total|count|bucket)$", key[0]))
        before = after


def test_an_engine_that_starts_anew(metrics: Metrics) -> None:
    for total in (100, 150, 30, 40):
        metrics.observe(StepStats(prefix_queries=total), None)
    assert samples(metrics)["prefix_cache_queries_total", ""] == 190


def test_a_step_costs_as_little_as_it_tells(metrics: Metrics) -> None:
    """Steps come by the wire: what they tell again is equal to what is known, and not the same object."""
    step = StepStats(num_steps=1, num_tokens=4, bucket_tokens=8, offload=OffloadCounts(queries=3))
    arrived = [msgspec.msgpack.decode(msgspec.msgpack.encode(step), type=StepStats) for _ in range(2)]
    metrics.observe(arrived[0], None)
    with counting_calls() as calls:
        metrics.observe(arrived[1], None)
    assert calls.total() < 30, calls


def test_labels(metrics: Metrics) -> None:
    for name, family in families(metrics).items():
        for sample in family.samples:
            if name == "jaxllm:cache_config_info":
                assert sample.value == 1
                assert sample.labels == {
                    "block_size": "16", "num_gpu_blocks": "32", "cache_dtype": "float32",
                    "enable_prefix_caching": "True", "engine": "0", "kv_cache_size_tokens": str(INFO.kv_tokens),
                    "kv_cache_max_concurrency": str(INFO.max_concurrency),
                }  # fmt: skip
            else:
                assert sample.labels.items() >= LABELS.items()
                assert set(sample.labels) - LABELS.keys() <= {
                    "le",
                    "finished_reason",
                    "reason",
                    "source",
                    "tier",
                    "sleep_state",
                    "position",
                    "place",
                    "process",
                    "max_lora",
                    "running_lora_adapters",
                    "waiting_lora_adapters",
                }


def test_the_names_that_dashboards_of_vllm_know() -> None:
    metrics = Metrics(INFO, "small", "vllm")
    body, _ = metrics.exposition()
    names = {sample.name for family in parse_text(body.decode()) for sample in family.samples}
    assert {f"vllm:{name}" for name in VLLM.split()} <= names
    assert not any(name.startswith("jaxllm:") for name in names)


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text",
        "application/openmetrics-text; version=1.0.0, text/plain;q=0.5",
        "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=0.0.4;q=0.2,*/*;q=0.1",
        "application/openmetrics-text;version=1.0.0;escaping=underscores",
    ],
)
def test_openmetrics_when_asked_for(metrics: Metrics, accept: str) -> None:
    metrics.observe(None, Measurements(30, 7))
    body, content_type = metrics.exposition(accept)
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    parsed = parse_openmetrics(body.decode())  # type: ignore[no-untyped-call]
    found = {family.name: family for family in parsed}
    (sample,) = found["jaxllm:generation_tokens"].samples
    assert (sample.name, sample.value) == ("jaxllm:generation_tokens_total", 7)
    assert all(found[f"jaxllm:{metric.name}"].samples for metric in METRICS)


def test_exemplars_of_latencies_in_openmetrics_alone(metrics: Metrics) -> None:
    """Of every value in seconds that a traced request has; neither the lengths nor other requests have any."""
    traced = FinishedRequest("stop", 3.0, 0.5, 1.5, 1.0, 3, 3, max_tokens=7, n=1, trace_id="a" * 32)
    ended = FinishedRequest("abort", 9.0, None, None, None, 3, 0, max_tokens=7, trace_id="b" * 32)
    times: Any = {"first_token_traces": [(2.0, "a" * 32)], "slowest_token": (0.75, "a" * 32)}
    metrics.observe(None, Measurements(3, 3, [2.0], [0.25, 0.75], [traced, ended], **times))
    metrics.http.observe("/v1/completions", "POST", 200, 0.5, 10, 10, "a" * 32)
    metrics.http.observe("/v1/completions", "POST", 200, 0.6, 10, 10)
    joined = metrics.with_others([msgspec.msgpack.decode(msgspec.msgpack.encode(metrics.measured()), type=Measured)])
    body, _ = joined.exposition("application/openmetrics-text")
    found: dict[str, dict[float, str]] = {}
    for family in parse_openmetrics(body.decode()):  # type: ignore[no-untyped-call]
        for sample in family.samples:
            if sample.exemplar is not None:
                assert sample.exemplar.value <= float(sample.labels["le"])
                name = family.name.removeprefix("jaxllm:")
                found.setdefault(name, {})[sample.exemplar.value] = sample.exemplar.labels["trace_id"]
    assert found == {
        name: {value: "a" * 32}
        for name, value in {
            "time_to_first_token_seconds": 2.0,
            "inter_token_latency_seconds": 0.75,
            "time_per_output_token_seconds": 0.75,
            "request_time_per_output_token_seconds": 0.5,
            "e2e_request_latency_seconds": 3.0,
            "request_queue_time_seconds": 0.5,
            "request_inference_time_seconds": 2.5,
            "request_prefill_time_seconds": 1.5,
            "request_decode_time_seconds": 1.0,
            "http_request_duration_seconds": 0.5,
            "http_request_duration_highr_seconds": 0.5,
        }.items()
    }
    assert b"a" * 32 not in joined.exposition()[0]


@pytest.mark.parametrize("accept", ["", "*/*", "text/plain;version=1.0.0;escaping=underscores", "nonsense;;=,"])
def test_text_otherwise(metrics: Metrics, accept: str) -> None:
    body, content_type = metrics.exposition(accept)
    assert content_type.startswith("text/plain; version=")
    found = {family.name: family for family in parse_text(body.decode())}
    assert all(found[f"jaxllm:{metric.name}"].samples for metric in METRICS)


def test_stages_of_an_engine_that_was_started_again() -> None:
    metrics = Metrics(replace(INFO, stages=STAGES), "small")
    for seconds in ((1.0, 2.0), (1.5, 2.5), (0.25, 0.5)):
        metrics.observe(StepStats(num_steps=1, bucket_tokens=1, stage_seconds=seconds), None)
    for found in (samples(metrics), samples(metrics.with_others([], metrics.engine_states()))):
        assert (found["stage_busy_seconds_total", "0"], found["stage_busy_seconds_total", "1"]) == (1.75, 3.0)
        assert (found["stage_layers", "1"], found["stage_weight_bytes", "1"]) == (3, 30)
        assert found["stage_kv_cache_bytes", "0"] == 2
    assert ("stage_layers", "0") not in samples(Metrics(INFO, "small"))


def test_two_servers_in_one_process_do_not_mix() -> None:
    one, two = Metrics(INFO, "small"), Metrics(INFO, "small")
    one.observe(None, Measurements(generation_tokens=5))
    assert samples(two)["generation_tokens_total", ""] == 0


def test_model_names_of_any_kind() -> None:
    name = 'a "quoted"\\\nname'
    found = families(Metrics(INFO, name))["jaxllm:num_requests_running"]
    assert found.samples[0].labels["model_name"] == name


def test_the_process_is_described_too(metrics: Metrics) -> None:
    assert b"process_resident_memory_bytes" in metrics.exposition()[0]


def test_the_page_says_what_the_code_does() -> None:
    metrics = Metrics(replace(INFO, planned_step_seconds={16: 0.003}, stages=STAGES), "small")
    metrics.observe(StepStats(num_tokens=12, bucket_tokens=16, num_steps=1, stage_seconds=(1.0, 1.0)), None)
    items = re.findall(r"^- .*(?:\n  .*)*", PAGE.read_text(), re.MULTILINE)
    parts = [re.fullmatch(r"- `(\w+)` (\w+)(?: \((.*)\))?: (.*)", " ".join(item.split())) for item in items]
    rows = [part.groups(default="") for part in parts if part]
    in_code = []
    for family in families(metrics).values():
        labels = {label: None for sample in family.samples for label in sample.labels if label != "le"}
        in_code.append((family.name.removeprefix("jaxllm:"), family.type, list(labels), family.documentation))
    in_code += [(name, kind, labels.split(", "), meaning) for name, (kind, labels, meaning) in HTTP_METRICS.items()]
    in_page = [(name, kind, sorted(labels.split(", ")), meaning) for name, kind, labels, meaning in rows]
    assert in_page == [(name, kind, sorted(labels), meaning) for name, kind, labels, meaning in in_code]
