"""A server that computes prompts and one that goes on with them, as a proxy made for vLLM's NIXL uses them."""

import json
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.e2e.serving.conftest import FLAGS
from tests.e2e.serving.test_disk_tier import kill, metric
from tests.e2e.transfer.pairs import FOR_ANOTHER
from tests.serving.server_process import ServerProcess, running

TEXT = "Once upon a time there was a dog who " + "ran and ran and " * 25
BODY: dict[str, Any] = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
CHAT = {**BODY, "messages": [{"role": "user", "content": TEXT}]}
COMPLETION = {**BODY, "prompt": TEXT}


def post(url: str, path: str, body: dict[str, Any], status: int = 200) -> dict[str, Any]:
    response = httpx.post(f"{url}{path}", json=body, timeout=120)
    assert response.status_code == status, response.text
    found: dict[str, Any] = response.json()
    return found


def through_both(first: str, second: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """What such a proxy does with a request."""
    begun = post(first, path, {**body, "kv_transfer_params": FOR_ANOTHER, "max_tokens": 1, "stream": False})
    told = begun["kv_transfer_params"]
    assert FOR_ANOTHER.keys() <= told.keys()
    assert told["do_remote_prefill"]
    assert not told["do_remote_decode"]
    return post(second, path, {**body, "kv_transfer_params": told})


def flags(tmp_path: Path, role: str, port: int, **more: Any) -> tuple[str, ...]:
    secret = tmp_path / "secret"
    secret.write_text("0123456789abcdef0123456789abcdef")
    extra = {"secret_file": str(secret), "connect_timeout": 60, "fetch_timeout": 100}
    given = {"kv_connector": "NixlConnector", "kv_role": role, "kv_port": port, "kv_connector_extra_config": extra}
    return (*FLAGS, "--kv-transfer-config", json.dumps({**given, **more}))


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


NO_LEASES = 'jaxllm:kv_transfer_leases{engine="0",model_name="demo"} 0.0'


def leave_before_reading(server: ServerProcess) -> None:
    """Nothing is kept for a client that has left when the answer comes, or does not read it."""
    granted = metric(server.url, "kv_transfer_leases_granted")
    body = json.dumps({**COMPLETION, "kv_transfer_params": FOR_ANOTHER, "max_tokens": 1}).encode()
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.sendall(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        assert client.recv(1) == b"H"
    deadline = time.monotonic() + 60
    while True:
        # An engine tells of its state after a step.
        post(server.url, "/v1/completions", {"prompt": "a", "max_tokens": 1})
        told = httpx.get(f"{server.url}/metrics", timeout=60).text
        if metric(server.url, "kv_transfer_leases_granted") > granted and NO_LEASES in told:
            break
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert metric(server.url, "nixl_num_kv_expired_reqs") == 0


def test_prompts_of_one_server_and_texts_of_another(tmp_path: Path) -> None:
    """Also with keys. Then the first is killed: prompts that it has are computed, and so is what comes after."""
    port = free_port()
    with (
        running(tmp_path / "second", *flags(tmp_path, "kv_consumer", port)) as second,
        running(tmp_path / "first", *flags(tmp_path, "kv_producer", port)) as first,
    ):
        for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", COMPLETION)):
            alone = post(second.url, path, {**body, "skip_reading_prefix_cache": True, "cache_salt": "alone"})
            found = through_both(first.url, second.url, path, body)
            assert found["choices"] == alone["choices"]
            assert found["kv_transfer_params"] is None
            assert found["usage"]["prompt_tokens_details"]["cached_tokens"] >= 64
        assert metric(second.url, "kv_transfer_tokens") >= 128
        sources = httpx.get(f"{second.url}/metrics").text
        assert 'source="external_kv_transfer"} 0.0' not in sources
        assert metric(first.url, "kv_transfer_sent_bytes") == metric(second.url, "kv_transfer_received_bytes") > 0
        leave_before_reading(first)
        told = post(first.url, "/v1/completions", {**COMPLETION, "kv_transfer_params": FOR_ANOTHER, "max_tokens": 1,
                                                   "cache_salt": "killed"})["kv_transfer_params"]  # fmt: skip
        alone = post(second.url, "/v1/completions", COMPLETION)
        kill(psutil.Process(first.process.pid))
        first.process.wait(30)
        with ThreadPoolExecutor(3) as pool:
            salted = {**COMPLETION, "cache_salt": "killed", "kv_transfer_params": told}
            several = [pool.submit(post, second.url, "/v1/completions", salted) for _ in range(3)]
            assert [each.result()["choices"] for each in several] == [alone["choices"]] * 3
        assert metric(second.url, "nixl_num_failed_transfers") >= 1
        assert "Traceback" not in second.log


def test_requests_for_the_wrong_server(tmp_path: Path) -> None:
    with running(tmp_path / "server", *FLAGS, "--kv-transfer-config.kv_role", "kv_consumer") as server:
        elsewhere = {"do_remote_prefill": True, "remote_host": "10.0.0.1", "remote_port": 5, "remote_request_id": "x"}
        for given, said in (
            (FOR_ANOTHER, "kv_producer"),
            (elsewhere, "secret_file"),
            ({**elsewhere, "remote_port": "port"}, "remote_port"),
            ({**FOR_ANOTHER, "do_remote_prefill": True}, "both true"),
            ({"do_remote_decode": 3}, "true or false"),
        ):
            error = post(server.url, "/v1/completions", {**COMPLETION, "kv_transfer_params": given}, 400)["error"]
            assert error["param"] == "kv_transfer_params"
            assert said in error["message"]
        stream = {**COMPLETION, "kv_transfer_params": FOR_ANOTHER, "stream": True}
        assert post(server.url, "/v1/completions", stream, 400)["error"]["param"] == "stream"
        several = {**COMPLETION, "prompt": [TEXT, TEXT], "kv_transfer_params": {**elsewhere, "remote_host": "::1"}}
        assert "2 prompts" in post(server.url, "/v1/completions", several, 400)["error"]["message"]
        # Nothing is asked for, or nothing is there: the prompt is computed.
        for given in ({}, {"do_remote_decode": False}, {"do_remote_prefill": True, "remote_block_ids": []}):
            post(server.url, "/v1/completions", {**COMPLETION, "kv_transfer_params": given})
        assert "Traceback" not in server.log
