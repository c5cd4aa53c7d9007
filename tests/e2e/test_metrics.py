"""Metrics of a real engine: every token is accounted for, and the parts of a request's time add up."""

from collections import Counter

import pytest
from prometheus_client.parser import text_string_to_metric_families

from jaxllm.engine.engine import Engine
from jaxllm.engine.validation import RequestLimits
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.telemetry.metrics import Metrics
from jaxllm.serving.text.input_processor import InputProcessor
from jaxllm.serving.text.measurements import FinishedRequest
from jaxllm.serving.text.output_processor import OutputProcessor


def values(metrics: Metrics) -> dict[str, float]:
    """Samples without labels of their own, by name."""
    families = text_string_to_metric_families(metrics.exposition()[0].decode())
    samples = [sample for family in families for sample in family.samples]
    return {each.name.removeprefix("jaxllm:"): each.value for each in samples if len(each.labels) == 2}


def test_every_token_is_accounted_for(engine: Engine, prompts: list[list[int]]) -> None:
    metrics = Metrics(engine.info, "demo")
    metrics.observe(engine.stats(), None)  # what other tests did with this engine
    before = values(metrics)
    processor = OutputProcessor(None, measure=True)
    inputs = InputProcessor(None, RequestLimits.of(engine.info), engine.info.eos_token_ids)
    params = [SamplingParams(n=1 + index % 2, max_tokens=3 + index % 9, temperature=0.5) for index in range(40)]
    requests = inputs.prepare(prompts[:40], params, [f"metered-{index}" for index in range(40)])
    for request in requests:
        processor.add(request)
        for child in request.children:
            engine.add_request(child)

    finished: list[FinishedRequest] = []
    generated = cached = 0
    while engine.has_unfinished_requests():
        outputs = engine.step()
        processed = processor.process(outputs)
        metrics.observe(engine.stats(), processed.measurements)
        assert processed.measurements is not None
        finished += processed.measurements.finished
        generated += sum(len(output.token_ids) for output in outputs)
        cached += sum(output.num_cached_tokens for output in outputs if output.scheduled_time is not None)

    after = values(metrics)
    grown = {name: after[name] - before.get(name, 0.0) for name in after}
    prompt_tokens = sum(len(request.prompt_token_ids) * len(request.children) for request in requests)
    assert grown["generation_tokens_total"] == grown["request_generation_tokens_sum"] == generated
    assert grown["prompt_tokens_total"] == grown["request_prompt_tokens_sum"] == prompt_tokens
    assert (grown["prefix_cache_queries_total"], grown["prefix_cache_hits_total"]) == (prompt_tokens, cached)
    assert grown["num_preemptions_total"] == grown["compilations_after_warmup_total"] == 0
    # Also the last token of a sequence counts, which is never computed with.
    needed = prompt_tokens - cached + generated
    # One that ends by a token which only the host understands may be part of one step too many.
    wasted = sum(each.reason == "stop" for each in finished)
    assert needed <= grown["iteration_tokens_total_sum"] <= needed + wasted
    assert grown["step_seconds_count"] == grown["iteration_tokens_total_count"] == grown["batch_fill_count"]
    assert 0 < grown["batch_fill_sum"] <= grown["batch_fill_count"]
    assert after["num_requests_running"] == after["num_requests_waiting"] == after["kv_cache_usage_perc"] == 0

    assert (
        len(finished) == 60 == grown["time_to_first_token_seconds_count"] == grown["e2e_request_latency_seconds_count"]
    )
    assert Counter(each.n for each in finished) == {None: 20, 1: 20, 2: 20}
    assert grown["inter_token_latency_seconds_count"] == generated - 60
    assert grown["inter_token_latency_seconds_sum"] == pytest.approx(grown["request_decode_time_seconds_sum"])
    parts = grown["request_queue_time_seconds_sum"] + grown["request_prefill_time_seconds_sum"]
    assert parts == pytest.approx(grown["time_to_first_token_seconds_sum"])
    assert parts + grown["request_decode_time_seconds_sum"] == pytest.approx(grown["e2e_request_latency_seconds_sum"])
    assert all(each.queue_seconds is not None and each.queue_seconds >= 0 for each in finished)
