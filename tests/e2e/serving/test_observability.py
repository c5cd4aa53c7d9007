"""What an operator sees of a server under load: traces, logs, its state, and metrics that its alerts ask for."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
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
