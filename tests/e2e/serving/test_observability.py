"""What an operator sees of a server under load: traces, logs, its state, and metrics that its alerts ask for."""

import json
import re
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families

from tests.e2e.serving.prometheus import alerts, metrics_in, panels, program, scraping
from tests.serving.server_process import SMALL, ServerProcess, running
from tests.serving.telemetry.collector import Collector, Received, collecting_http

TRACE = "0af7651916cd43dd8448eb211c80319c"
MEASURED = ("--enable-mfu-metrics", "--kv-cache-metrics", "--kv-cache-metrics-sample", "1")
KEY = "sekret-of-the-operator"


class Observed:
    """A server, whom it tells of its requests, and a client."""

    def __init__(self, server: ServerProcess, collector: Collector, client: httpx.Client) -> None:
        self.server, self.collector, self.client = server, collector, client

    def complete(self, headers: dict[str, str] | None = None, **body: Any) -> dict[str, Any]:
        answer = self.client.post("/v1/completions", json={"prompt": "Once upon", **body}, headers=headers, timeout=60)
        found: dict[str, Any] = answer.raise_for_status().json()
        return found

    def lines(self) -> list[dict[str, Any]]:
        """The records of the log, but for the banner."""
        return [json.loads(line) for line in self.server.log.splitlines() if line.startswith('{"time"')]


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    log = tmp_path_factory.mktemp("observed") / "log"
    environment = {
        "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "JAXLLM_API_KEY": KEY,
    }
    with collecting_http() as collector:
        flags = ("--otlp-traces-endpoint", collector.endpoint, "--access-log", "--log-format", "json")
        with (
            running(log, *SMALL, *MEASURED, *flags, environment=environment) as server,
            httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {KEY}"}) as client,
        ):
            yield Observed(server, collector, client)


def test_requests_are_traced_and_the_log_names_their_traces(observed: Observed) -> None:
    headers = {"traceparent": f"00-{TRACE}-b7ad6b7169203331-01", "x-request-id": "mine-1"}
    answer = observed.complete(headers, max_tokens=8, temperature=0)
    streamed = observed.complete({"x-request-id": "mine-2"}, max_tokens=4, n=2, temperature=0.5)
    (root, *parts), (other, *_) = observed.collector.traces(2)
    assert (root.trace_id, root.parent) == (TRACE, "b7ad6b7169203331")
    assert root.attributes["gen_ai.request.id"] == answer["id"]
    assert root.attributes["gen_ai.usage.completion_tokens"] == answer["usage"]["completion_tokens"]
    assert root.attributes["gen_ai.usage.prompt_tokens"] == answer["usage"]["prompt_tokens"]
    assert root.resource["service.name"] == "jaxllm"
    assert [part.name for part in parts] == ["tokenization", "queue", "prefill", "decode"]
    for part, following in pairwise(parts):
        assert root.begin <= part.begin <= part.end <= following.end <= root.end + 1e-3
    assert other.attributes["gen_ai.request.id"] == streamed["id"]
    assert other.attributes["gen_ai.usage.num_sequences"] == 2

    (first,) = [line for line in observed.lines() if line.get("request_id") == "mine-1"]
    assert (first["trace_id"], first["completion_tokens"]) == (TRACE, 8)
    (second,) = [line for line in observed.lines() if line.get("request_id") == "mine-2"]
    assert second["trace_id"] == other.trace_id


def test_the_state_lists_requests_and_pages_for_the_operator_alone(observed: Observed) -> None:
    with ThreadPoolExecutor(6) as threads:
        body = {"max_tokens": 480, "ignore_eos": True, "n": 1}
        waiting = [threads.submit(observed.complete, {"x-request-id": f"long-{n}"}, **body) for n in range(6)]
        deadline = time.monotonic() + 30
        while True:
            state = observed.client.get("/debug/state").raise_for_status().json()
            (engine,) = state["engines"]
            if engine["state"]["running"] == 4 and engine["state"]["waiting"] == 2:
                break
            assert time.monotonic() < deadline, state
        for each in waiting:
            each.result()
    requests = engine["state"]["requests"]
    assert sorted(each["request_id"][:11] for each in requests) == [f"cmpl-long-{n}" for n in range(6)]
    assert Counter(each["state"] in ("prefill", "decode") for each in requests) == {True: 4, False: 2}
    assert (state["accepting"], state["http_requests"], engine["in_flight"]) == (True, 6, 6)
    assert engine["pid"] == observed.server.engine().pid
    (pages,) = engine["state"]["pages"]
    assert pages["held"] == sum(each["pages"] for each in requests) > 0
    assert pages["held"] + pages["free"] == pages["total"]
    assert "Once upon" not in str(state)

    assert httpx.get(f"{observed.server.url}/debug/state").status_code == 401


def test_buckets_of_latencies_name_traces_where_openmetrics_is_asked_for(observed: Observed) -> None:
    answer = observed.complete(max_tokens=8)
    accept = {"Accept": "application/openmetrics-text"}
    text = observed.client.get("/metrics", headers=accept).raise_for_status().text
    named = {
        (family.name, sample.exemplar.labels["trace_id"])
        for family in parse_openmetrics(text)  # type: ignore[no-untyped-call]
        for sample in family.samples
        if sample.exemplar is not None
    }
    deadline = time.monotonic() + 30
    while not (
        found := [span for span in observed.collector.spans if span.attributes.get("gen_ai.request.id") == answer["id"]]
    ):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    (root,) = found
    for name in ("jaxllm:e2e_request_latency_seconds", "http_request_duration_seconds"):
        assert (name, root.trace_id) in named
    assert "trace_id" not in observed.client.get("/metrics").raise_for_status().text


def test_the_end_of_an_engine_is_a_span_of_what_it_interrupts(observed: Observed) -> None:
    body = {"prompt": "Once", "max_tokens": 480, "n": 8, "ignore_eos": True, "stream": True}
    trace_id = "1" * 32
    headers = {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}
    with observed.client.stream("POST", "/v1/completions", json=body, headers=headers, timeout=120) as response:
        parts = response.iter_raw()
        next(parts)
        observed.server.engine().kill()
        deadline = time.monotonic() + 30
        while 'reason="engine_restart"} 8.0' not in observed.client.get("/metrics").text:
            assert time.monotonic() < deadline
        assert b"".join(parts).endswith(b"data: [DONE]\n\n")
    deadline = time.monotonic() + 30
    while not (
        roots := [each for each in observed.collector.spans if each.name == "llm_request" and each.trace_id == trace_id]
    ):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    restarts = [each for each in observed.collector.spans if each.name == "engine_restart"]
    (restart,) = [each for each in restarts if each.trace_id == trace_id]
    assert restart.parent == roots[0].span_id
    assert restart.attributes["jaxllm.engine"] == 0
    assert "SIGKILL" in restart.attributes["jaxllm.reason"]
    assert 0 < restart.attributes["jaxllm.tokens_before"] < 480 * 8
    assert roots[0].begin < restart.begin < restart.end < roots[0].end
    assert not roots[0].is_error


def load(observed: Observed) -> None:
    """Requests of several kinds: answered, rejected, and one whose client leaves."""
    for number in range(3):
        observed.complete(max_tokens=8 + number, n=1 + number % 2)
    assert observed.client.post("/v1/completions", json={"prompt": ""}).status_code == 400
    body = {"prompt": "Once", "max_tokens": 400, "ignore_eos": True, "stream": True}
    with observed.client.stream("POST", "/v1/completions", json=body) as response:
        next(response.iter_raw())


def test_every_metric_that_a_query_names_is_there(observed: Observed) -> None:
    load(observed)
    text = observed.client.get("/metrics").raise_for_status().text
    samples = {sample.name for family in text_string_to_metric_families(text) for sample in family.samples}
    described = set(re.findall(r"^# TYPE (\S+)", text, re.MULTILINE))
    queries = [query for _, query in panels()] + list(alerts().values())
    named = set().union(*map(metrics_in, queries))
    assert len(named) > 30
    # Described, but without samples here: only some engines have these.
    rare = {
        *("jaxllm:planned_step_seconds", "jaxllm:stage_busy_seconds_total"),
        *("jaxllm:peak_flops_per_gpu", "jaxllm:peak_bytes_per_second_per_gpu"),
    }
    assert named - samples <= rare
    assert "jaxllm:planned_step_seconds" in described
    for name in ("flops", "read_bytes", "write_bytes"):
        (found,) = re.findall(rf"^jaxllm:estimated_{name}_per_gpu_total{{.*}} (\S+)$", text, re.MULTILINE)
        assert float(found) > 0


@pytest.mark.skipif(program("prometheus") is None, reason="scripts/prometheus installs it")
def test_prometheus_runs_every_query_and_alerts_fire_when_they_should(observed: Observed, tmp_path: Path) -> None:
    with scraping(f"127.0.0.1:{observed.server.port}", tmp_path) as prometheus:
        load(observed)
        prometheus.wait(lambda: prometheus.query("rate(jaxllm:generation_tokens_total[1m]) > 0"), "tokens")
        prometheus.wait(lambda: prometheus.exemplars("jaxllm:e2e_request_latency_seconds_bucket"), "an exemplar")
        kept = prometheus.exemplars("jaxllm:e2e_request_latency_seconds_bucket")
        roots: dict[str, Received] = {}

        def all_came() -> bool:
            roots.update({each.trace_id: each for each in observed.collector.spans if each.name == "llm_request"})
            return all(each["labels"]["trace_id"] in roots for each in kept)

        prometheus.wait(all_came, "the traces of the exemplars")
        for each in kept:
            wanted = roots[each["labels"]["trace_id"]].attributes["gen_ai.latency.e2e"]
            assert float(each["value"]) == pytest.approx(wanted)
        for title, query in panels():
            if title not in ("Busy stages", "Share of the peaks"):  # of pipeline parallel, and of known chips
                prometheus.wait(partial(prometheus.query, query), title)
        for query in alerts().values():
            prometheus.query(query)
        prometheus.wait(lambda: all(rule["health"] != "unknown" for rule in prometheus.rules()), "all alerts")
        assert {rule["name"]: rule["health"] for rule in prometheus.rules()} == dict.fromkeys(alerts(), "ok")

        engine = observed.server.engine()
        with ThreadPoolExecutor(1) as threads:
            running = threads.submit(
                observed.client.post, "/v1/completions", timeout=120,
                json={"prompt": "Once", "max_tokens": 480, "n": 16, "ignore_eos": True},
            )  # fmt: skip
            prometheus.wait(lambda: prometheus.query("jaxllm:num_requests_running > 0"), "a running request")
            engine.suspend()
            stalled = alerts()["JaxllmEngineStalled"].replace("[2m]", "[2s]")
            prometheus.wait(lambda: prometheus.query(stalled), "a stalled engine")
            engine.kill()
            running.result()
        prometheus.wait(lambda: prometheus.query(alerts()["JaxllmEngineRestarted"]), "a restart")
        assert not prometheus.query(alerts()["JaxllmEngineCrashLoop"])
