"""What an operator sees of a server under load: traces, logs, its state, and metrics that its alerts ask for."""

import json
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import httpx
import pytest

from tests.serving.server_process import SMALL, ServerProcess, running
from tests.serving.telemetry.collector import Collector, collecting_http

TRACE = "0af7651916cd43dd8448eb211c80319c"
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
            running(log, *SMALL, *flags, environment=environment) as server,
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
