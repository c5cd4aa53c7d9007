"""Traces of requests as a collector gets them, over either protocol, with times given by hand."""

import logging
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from jaxllm.errors import ConfigError
from jaxllm.pooling.params import PoolingParams
from jaxllm.requests.outputs import EngineOutput
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.options.server import ServerOptions
from jaxllm.serving.pooling.inputs import PooledText
from jaxllm.serving.pooling.processor import PoolingProcessor
from jaxllm.serving.telemetry import otlp
from jaxllm.serving.telemetry.otlp import Tracing
from jaxllm.serving.text.input_processor import TextRequest
from jaxllm.serving.text.measurements import Meter
from jaxllm.serving.text.output_processor import OutputProcessor
from tests.ports import free_ports
from tests.serving.telemetry.collector import Collector, collecting_grpc, collecting_http

CLIENT = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "tracestate": "a=1"}
HTTP = {"OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf"}


def text_request(name: str, arrival: float, **params: Any) -> TextRequest:
    settings = SamplingParams(**params)
    prompt = np.arange(3, dtype=np.int32)
    names = [name] if settings.n == 1 else [f"{name}-{index}" for index in range(settings.n)]
    children = [Request(request_id=each, prompt_token_ids=prompt, params=settings) for each in names]
    return TextRequest(
        request_id=name, prompt=None, prompt_token_ids=prompt.tolist(), params=settings, children=children,
        arrival_time=arrival, tokenized_time=arrival + 0.25,
    )  # fmt: skip


@contextmanager
def traced(endpoint: str, environ: dict[str, str]) -> Iterator[Tracing]:
    tracing = Tracing(endpoint, "demo", environ)
    try:
        yield tracing
    finally:
        tracing.close()


def run(tracing: Tracing, request: TextRequest, reason: str = "stop", headers: dict[str, str] | None = None) -> str:
    """Trace a request that is scheduled after 1 s, with a token after 2 s and the last one after 3 s."""
    begin, meter = request.arrival_time, Meter()
    trace_id = tracing.begin([request], [f"cmpl-{request.request_id}"], headers or {})
    meter.add(request)
    for child in request.children:
        meter.take(EngineOutput(child.request_id, [1], scheduled_time=begin + 1, num_cached_tokens=2), begin + 2)
        meter.take(EngineOutput(child.request_id, [1]), begin + 3)
        meter.finish(child.request_id, reason, begin + 3.5)
    return trace_id


@pytest.mark.parametrize(("collecting", "environ"), [(collecting_grpc, {}), (collecting_http, HTTP)])
def test_a_request_is_a_span_with_a_span_for_each_part(
    collecting: "Any", environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_SERVICE_NAME", "mine")
    context: AbstractContextManager[Collector] = collecting()
    with context as collector, traced(collector.endpoint, {**environ, "OTEL_SERVICE_NAME": "mine"}) as tracing:
        arrival = time.monotonic() - 10
        wall = time.time() - 10
        ours = run(tracing, text_request("a", arrival, max_tokens=7, temperature=0.5, top_p=0.25), headers=CLIENT)
        run(tracing, text_request("b", arrival + 1, n=2, temperature=0), "error")
        tracing.close()
        (root, *parts), (second, *others) = collector.traces(2)

    assert ours == root.trace_id == "0af7651916cd43dd8448eb211c80319c"
    assert (root.parent, root.kind, root.is_error) == ("b7ad6b7169203331", 2, False)
    assert root.begin == pytest.approx(wall, abs=0.1)
    assert root.end - root.begin == pytest.approx(3.5)
    assert root.resource["service.name"] == "mine"
    assert {name: pytest.approx(value) if isinstance(value, float) else value for name, value in {
        "gen_ai.request.id": "cmpl-a",
        "gen_ai.response.model": "demo",
        "gen_ai.request.max_tokens": 7,
        "gen_ai.request.temperature": 0.5,
        "gen_ai.request.top_p": 0.25,
        "gen_ai.request.n": 1,
        "gen_ai.usage.prompt_tokens": 3,
        "gen_ai.usage.completion_tokens": 2,
        "gen_ai.usage.cache_read.input_tokens": 2,
        "gen_ai.usage.num_sequences": 1,
        "gen_ai.response.finish_reasons": ["stop"],
        "gen_ai.latency.time_in_queue": 1.0,
        "gen_ai.latency.time_to_first_token": 2.0,
        "gen_ai.latency.time_in_model_prefill": 1.0,
        "gen_ai.latency.time_in_model_decode": 1.0,
        "gen_ai.latency.time_in_model_inference": 2.0,
        "gen_ai.latency.e2e": 3.5,
    }.items()} == root.attributes  # fmt: skip
    lengths = [(part.name, round(part.begin - root.begin, 3), round(part.end - part.begin, 3)) for part in parts]
    assert lengths == [("tokenization", 0, 0.25), ("queue", 0.25, 0.75), ("prefill", 1, 1), ("decode", 2, 1)]
    assert {part.trace_id for part in parts} == {root.trace_id}

    assert second.trace_id != root.trace_id
    assert (second.parent, second.is_error) == ("", True)
    assert second.attributes["gen_ai.usage.completion_tokens"] == 4
    assert sorted(part.name for part in others) == ["decode", "decode", "prefill", "prefill", "queue", "tokenization"]


def test_one_that_never_ran_has_waited_until_its_end() -> None:
    with collecting_http() as collector, traced(collector.endpoint, HTTP) as tracing:
        request, meter = text_request("a", time.monotonic() - 5), Meter()
        tracing.begin([request], ["a"], {})
        meter.add(request)
        meter.finish("a", "abort", request.arrival_time + 4)
        tracing.close()
        ((root, *parts),) = collector.traces(1)
    assert root.attributes["gen_ai.response.finish_reasons"] == ["abort"]
    assert "gen_ai.latency.time_in_queue" not in root.attributes
    assert [(part.name, round(part.end - part.begin, 3)) for part in parts] == [("tokenization", 0.25), ("queue", 3.75)]


def test_ends_of_engines_are_spans_and_times_go_on() -> None:
    """From the end of an engine to news of the request from the next one, or to the request's own end."""
    with collecting_http() as collector, traced(collector.endpoint, HTTP) as tracing:
        request, outputs = text_request("a", time.monotonic() - 5, n=2), OutputProcessor(None, measure=True)
        trace_id = tracing.begin([request], ["a"], {})
        outputs.add(request)
        began = request.arrival_time
        outputs.process(
            [EngineOutput(child.request_id, [1, 2], scheduled_time=began + 1) for child in request.children]
        )
        outputs.interrupt(["a"], 3, "it was killed")
        again = EngineOutput("a-0", [3], finish_reason="stop")
        measured = outputs.process([again]).measurements
        outputs.interrupt(["a"], 0, "once more")
        outputs.abort(["a"], "error")
        tracing.close()
        ((root, *parts),) = collector.traces(1)
    first, second = [part for part in parts if part.name == "engine_restart"]
    assert first.attributes == {
        "jaxllm.engine": 3, "jaxllm.reason": "it was killed", "jaxllm.tokens_before": 4,
    }  # fmt: skip
    assert second.attributes["jaxllm.tokens_before"] == 2
    assert root.begin < first.begin <= first.end <= second.begin <= second.end == pytest.approx(root.end)
    assert measured is not None
    assert measured.slowest_token is not None
    assert (measured.slowest_token[1], [each.trace_id for each in measured.finished]) == (trace_id, [trace_id])
    assert [part.name for part in parts].count("prefill") == 2


def test_a_pooling_request_begins_again() -> None:
    with collecting_http() as collector, traced(collector.endpoint, HTTP) as tracing:
        params = PoolingParams(task="embed")
        request = PooledText(
            request_id="a",
            prompt="x",
            prompt_token_ids=[1, 2],
            params=params,
            children=[],
            arrival_time=time.monotonic(),
        )
        request.children = [SimpleNamespace(lora_request=None)]  # type: ignore[list-item]
        tracing.begin([request], ["a"], {})
        outputs = PoolingProcessor()
        outputs.add(request)
        outputs.interrupt(["a"], 1, "it was killed")
        done = EngineOutput(
            "a", [], finish_reason="stop", data=np.zeros(2, np.float32), scheduled_time=time.monotonic()
        )
        measured = outputs.process([done]).measurements
        tracing.close()
        ((root, *parts),) = collector.traces(1)
    (restart,) = [part for part in parts if part.name == "engine_restart"]
    assert (restart.attributes["jaxllm.engine"], restart.attributes["jaxllm.tokens_before"]) == (1, 0)
    assert restart.end == root.end
    assert measured is not None
    assert measured.finished[0].trace_id == root.trace_id


def test_the_sampler_of_the_sdk_decides_and_the_client_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    with collecting_http() as collector, traced(collector.endpoint, HTTP) as tracing:
        unsampled = text_request("a", time.monotonic() - 5)
        assert run(tracing, unsampled) != ""
        assert unsampled.trace is None
        run(tracing, text_request("b", time.monotonic() - 5), headers=CLIENT)
        tracing.close()
        ((root, *_),) = collector.traces(1)
    assert root.attributes["gen_ai.request.id"] == "cmpl-b"


@pytest.mark.parametrize("environ", [{}, HTTP])
def test_a_collector_that_is_not_there_costs_a_line_of_the_log(
    environ: dict[str, str], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(otlp, "_CLOSING_SECONDS", 0.3)
    tracing = Tracing(f"http://127.0.0.1:{free_ports()}", "demo", environ)
    began = time.monotonic()
    for index in range(100):
        run(tracing, text_request(str(index), time.monotonic() - 5))
    assert time.monotonic() - began < 1
    tracing.close()
    assert time.monotonic() - began < 5
    assert [record.levelname for record in caplog.records].count("WARNING") <= 1


def test_wrong_options_are_found_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert ServerOptions(otlp_traces_endpoint="collector:4317").otlp_traces_endpoint == "collector:4317"
    with pytest.raises(ConfigError, match=r"otlp_traces_endpoint='collector': must be a URL"):
        ServerOptions(otlp_traces_endpoint="collector")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "thrift")
    with pytest.raises(ConfigError, match=r"TRACES_PROTOCOL='thrift': must be one of grpc, http/protobuf"):
        ServerOptions(otlp_traces_endpoint="http://collector:4317")
