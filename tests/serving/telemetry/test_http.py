"""Counts of HTTP requests, read with Prometheus' own parser."""

from collections.abc import Iterator

import httpx
import pytest
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

from jaxllm.serving.telemetry.http import HttpMetrics
from tests.e2e.serving.metrics import Metrics
from tests.serving.server_process import SMALL, ServerProcess, running


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("server") / "log"
    flags = (*SMALL, "--max-queued-requests=1", "--api-key=key", "--max-num-seqs=2")
    with running(log, "demo", *flags) as process:
        yield process


def values(server: ServerProcess) -> dict[tuple[str, ...], float]:
    """By name and the values of labels in the order of their names, but for those of the engine."""
    found = {}
    for family in text_string_to_metric_families(httpx.get(f"{server.url}/metrics").text):
        for sample in family.samples:
            own = [value for name, value in sorted(sample.labels.items()) if name not in ("engine", "model_name")]
            found[sample.name, *own] = sample.value
    return found


def test_requests_by_route(server: ServerProcess) -> None:
    before = values(server)
    with httpx.Client(base_url=server.url, headers={"Authorization": "Bearer key"}, timeout=60) as client:
        client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2})
        client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2, "stream": True})
        client.post("/v1/completions", json={"prompt": "a", "max_tokens": -2})
        client.get("/v1/models/demo")
        client.get("/v1/models/other")
        client.get("/nowhere")
        client.get("/health")
    httpx.post(f"{server.url}/v1/completions", json={})
    after = values(server)

    def grown(*key: str) -> float:
        return after.get(key, 0) - before.get(key, 0)

    assert grown("http_requests_total", "/v1/completions", "POST", "2xx") == 2
    # One is wrong, and one brings no key.
    assert grown("http_requests_total", "/v1/completions", "POST", "4xx") == 2
    assert grown("http_requests_total", "/v1/models/{model}", "GET", "2xx") == 1
    assert grown("http_requests_total", "/v1/models/{model}", "GET", "4xx") == 1
    assert grown("http_requests_total", "none", "GET", "4xx") == 1
    assert not any(key[1:2] in (("/health",), ("/metrics",)) for key in after if key[0] == "http_requests_total")
    assert grown("http_request_duration_seconds_count", "/v1/completions", "POST") == 4
    assert grown("http_request_duration_highr_seconds_count") == 7
    assert grown("http_request_size_bytes_count", "/v1/completions") == 4
    assert grown("http_request_size_bytes_sum", "/v1/completions") > 60
    assert grown("http_response_size_bytes_sum", "/v1/completions") > 200


def test_rejections_by_reason(server: ServerProcess) -> None:
    body = {"prompt": "a", "n": 3, "max_tokens": 400, "ignore_eos": True, "stream": True}
    client = httpx.Client(base_url=server.url, headers={"Authorization": "Bearer key"}, timeout=60)
    with client, client.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200
        assert client.post("/v1/completions", json={"prompt": "a", "max_tokens": 2}).status_code == 503
    assert values(server)["jaxllm:admission_rejections_total", "queue_full"] == 1


def test_every_token_of_a_request_is_in_a_step(server: ServerProcess) -> None:
    Metrics.wait_until_idle(server.url)  # what an earlier client left behind is over
    before = values(server)
    with OpenAI(base_url=f"{server.url}/v1", api_key="key") as client:
        usage = client.completions.create(
            model="demo", prompt="The very first of all words", max_tokens=7, extra_body={"cache_salt": "mine"}
        ).usage
    assert usage is not None
    after = values(server)
    name = "jaxllm:iteration_tokens_total_sum"
    assert after[name,] - before[name,] == usage.total_tokens
    count = "jaxllm:request_num_preemptions_count"
    assert after[count,] - before[count,] == 1
    for reason in ("capacity", "deferred"):
        assert after["jaxllm:num_requests_waiting_by_reason", reason] == 0


def test_series_are_bounded_and_add_up() -> None:
    one, two = HttpMetrics(), HttpMetrics()
    for index in range(5000):
        one.observe(f"/{index}", "GET", 200, 0.2, 10, 20)
    two.observe("/0", "GET", 200, 0.2, 1, 2)
    two.reject("queue_full")
    one.add(two.measured())
    families = {family.name: family for family in one.collect()}
    samples = families["http_requests"].samples
    assert len(samples) == 1024
    assert samples[0].value == 2
    assert one.rejections["queue_full"] == 1
