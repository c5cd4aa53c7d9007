"""The log of requests as JSON: one line for each, whose fields say what became of it."""

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serving.server_process import SMALL, ServerProcess, running

FLAGS = (*SMALL, "--access-log", "--log-format", "json", "--enable-request-id-headers", "--allowed-origins", "*")


def lines(server: ServerProcess) -> dict[str, dict[str, Any]]:
    """Lines of the access log by the id of their request."""
    logged = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
    return {line["request_id"]: line for line in logged if line["logger"].endswith("access_log")}


def test_every_request_has_one_line_with_fields(tmp_path: Path) -> None:
    with running(tmp_path / "log", *FLAGS) as server, httpx.Client(base_url=server.url, timeout=120) as http:

        def post(name: str, body: dict[str, Any], path: str = "/v1/completions") -> None:
            http.post(path, json=body, headers={"x-request-id": name})

        post("whole", {"prompt": "Once upon a time", "max_tokens": 7, "ignore_eos": True, "n": 2})
        post("stream", {"prompt": [5, 6, 7], "max_tokens": 9, "ignore_eos": True, "stream": True})
        post("refused", {"prompt": "a", "temperature": -1})
        post("nowhere", {}, "/v1/nothing")
        http.get("/health", headers={"x-request-id": "quiet"})
        with http.stream("POST", "/v1/completions", json={"prompt": "a", "max_tokens": 480, "n": 8, "ignore_eos": True,
                         "stream": True}, headers={"x-request-id": "left"}) as answer:  # fmt: skip
            next(answer.iter_bytes())
        deadline = time.monotonic() + 60
        while len(found := lines(server)) < 5 and time.monotonic() < deadline:
            time.sleep(0.05)
    whole, stream, refused, nowhere, left = (found[name] for name in ("whole", "stream", "refused", "nowhere", "left"))
    assert (whole["method"], whole["path"], whole["status"], whole["client"]) == (
        "POST", "/v1/completions", 200, "127.0.0.1"
    )  # fmt: skip
    assert (whole["prompt_tokens"], whole["completion_tokens"], whole["finish_reason"]) == (4, 14, "length")
    assert 0 < whole["time_to_first_token_seconds"] <= whole["duration_seconds"]
    assert (stream["status"], stream["prompt_tokens"], stream["completion_tokens"]) == (200, 3, 9)
    assert (refused["status"], refused["reason"]) == (400, refused["message"].partition("; ")[2])
    assert "temperature" in refused["reason"]
    assert "completion_tokens" not in refused
    assert nowhere["status"] == 404
    assert left["finish_reason"] == "abort"
    assert left["completion_tokens"] < 8 * 480


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"error": 1}', b'"text"', b'{"error": {"code": 3}}'])
def test_reasons_of_other_forms_cost_no_line(body: bytes) -> None:
    from jaxllm.serving.http.middleware.access_log import _reason

    assert _reason(body) in (None, "1")
