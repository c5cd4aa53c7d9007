"""A server sleeps, pauses and gets other weights, in development mode."""

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from safetensors.numpy import load_file, save_file

from tests.e2e.serving.conftest import FLAGS
from tests.serving.server_process import running
from tests.thinned import thinned

DEVELOPMENT = ("--server-dev-mode", "--enable-sleep-mode")
BODY: dict[str, Any] = {
    "prompt": "Once upon a time there was a little dog who", "temperature": 0, "max_tokens": 24, "ignore_eos": True,
}  # fmt: skip


@pytest.fixture(scope="module", params=thinned([2], [1]))
def client(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """Two engines, and one where every case is asked for: it gets a part of the same messages."""
    flags = (*FLAGS, *DEVELOPMENT, "--data-parallel-size", str(request.param))
    with (
        running(tmp_path_factory.mktemp("sleep") / "log", *flags) as server,
        httpx.Client(base_url=server.url, timeout=100) as client,
    ):
        yield client
        assert "Traceback" not in server.log, server.log


@pytest.fixture(autouse=True)
def nobody_waits_for_a_test_that_failed(client: httpx.Client) -> Iterator[None]:
    yield
    client.post("/resume")


@pytest.fixture(scope="module")
def other(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Another checkpoint of the same model."""
    folder = tmp_path_factory.mktemp("other") / "checkpoint"
    shutil.copytree(demo_folder, folder)
    weights = load_file(folder / "model.safetensors")
    random = np.random.default_rng(0)
    noisy = {
        name: (values.astype(np.float32) + random.normal(0, 0.02, values.shape)).astype(values.dtype)
        for name, values in weights.items()
    }
    save_file(noisy, folder / "model.safetensors")
    return folder


def complete(client: httpx.Client, **settings: Any) -> str:
    response = client.post("/v1/completions", json={**BODY, **settings})
    assert response.status_code == 200, response.text
    text: str = response.json()["choices"][0]["text"]
    return text


def post(client: httpx.Client, path: str, **settings: Any) -> httpx.Response:
    response = client.post(path, **settings)
    assert response.status_code == 200, response.text
    return response


def sleep_states(client: httpx.Client) -> set[str]:
    families = text_string_to_metric_families(client.get("/metrics").text)
    samples = [sample for family in families for sample in family.samples]
    return {
        each.labels["sleep_state"] for each in samples if each.name.endswith("engine_sleep_state") and each.value == 1
    }


def waiting(client: httpx.Client) -> float:
    return float(client.get("/load").json()["server_load"])


@pytest.mark.parametrize(("level", "state"), [(1, "weights_offloaded"), (2, "discard_all")])
def test_requests_wait_while_the_server_sleeps(client: httpx.Client, level: int, state: str) -> None:
    before = complete(client)
    assert client.get("/is_sleeping").json() == {"is_sleeping": False}
    post(client, "/sleep", params={"level": level})
    assert client.get("/is_sleeping").json() == {"is_sleeping": True}
    assert sleep_states(client) == {state}
    health = client.get("/health")
    assert health.status_code == 200
    assert health.json()["sleep_level"] == level
    assert client.get("/ready").status_code == 503
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(complete, client)
        while not waiting(client):
            pass
        post(client, "/wake_up", params={"tags": ["weights"]})
        assert client.get("/is_sleeping").json() == {"is_sleeping": True}
        assert not answer.done()
        post(client, "/wake_up", params={"tags": "kv_cache"})
        assert answer.result() == before
    assert client.get("/ready").status_code == 200
    assert not client.get("/health").content
    assert client.get("/get_world_size?include_dp=false").json() == {"world_size": 1}
    assert sleep_states(client) == {"awake"}


@pytest.mark.parametrize("mode", ["abort", "wait", "keep"])
def test_what_a_pause_makes_of_requests(client: httpx.Client, mode: str) -> None:
    many = {"max_tokens": 450}
    whole = complete(client, **many)
    with ThreadPoolExecutor(2) as pool:
        answer = pool.submit(complete, client, **many)
        while not (waiting(client) or answer.done()):
            pass
        assert post(client, "/pause", params={"mode": mode}).json() == {"status": "paused"}
        assert client.get("/is_paused").json() == {"is_paused": True}
        if mode == "abort":
            assert whole.startswith(answer.result())
        elif mode == "wait":
            assert answer.result() == whole
        late = pool.submit(complete, client)
        while not waiting(client):
            pass
        assert not late.done()
        assert post(client, "/resume").json() == {"status": "resumed"}
        assert whole.startswith(late.result())
        if mode == "keep":
            assert answer.result() == whole
    assert client.get("/is_paused").json() == {"is_paused": False}


def test_requests_are_ended_by_their_names(client: httpx.Client) -> None:
    many = {"max_tokens": 450}
    whole = complete(client, **many)
    with ThreadPoolExecutor(4) as pool:
        names = ("one", "two-1a2b3c4d", "three")
        post(client, "/pause", params={"mode": "keep"})
        one, two, three = (pool.submit(complete, client, **many, request_id=name) for name in names)
        while waiting(client) < len(names):
            pass
        ended = 0
        # The server's load counts requests before their prompts are read; they have names when they were.
        while ended < 2:
            answer = post(client, "/abort_requests", json={"request_ids": ["one", "cmpl-two-1a2b3c4d", "nobody"]})
            assert answer.json()["status"] == "aborted"
            ended += answer.json()["aborted"]
        assert ended == 2
        assert [len(each.result()) for each in (one, two)] == [0, 0]
        assert not three.done()
        post(client, "/resume")
        assert three.result() == whole
    assert post(client, "/abort_requests", json={}).json()["aborted"] == 0


def test_weights_of_another_folder(client: httpx.Client, other: Path, demo_folder: Path, tmp_path: Path) -> None:
    before = complete(client)
    updated = post(client, "/update_weights", json={"update_info": {"path": str(other)}}).json()
    assert updated["message"] == "Weights updated"
    changed = complete(client)
    assert changed != before
    # What is wrong with a checkpoint is known before anything is replaced.
    refused = client.post("/update_weights", json={"update_info": {"path": str(tmp_path)}})
    assert refused.status_code == 400
    assert "neither model.safetensors" in refused.json()["error"]["message"]
    for path in ("~nobody-of-this-name/weights", "x" * 5000):
        refused = client.post("/update_weights", json={"update_info": {"path": path}})
        assert refused.status_code == 400
        assert "is not a folder" in refused.json()["error"]["message"]
    assert complete(client) == changed
    again = post(client, "/update_weights", json={"update_info": {"path": str(demo_folder)}}).json()
    assert again["weights_version"] == updated["weights_version"] + 1
    assert complete(client) == before


def test_weights_that_are_lost_are_said_to_be(client: httpx.Client, demo_folder: Path, tmp_path: Path) -> None:
    before = complete(client)
    broken = tmp_path / "broken"
    shutil.copytree(demo_folder, broken)
    weights = load_file(broken / "model.safetensors")
    last = np.full_like(weights["model.norm.weight"], np.nan)
    save_file({**weights, "model.norm.weight": last}, broken / "model.safetensors")
    assert client.post("/update_weights", json={"update_info": {"path": str(broken)}}).status_code == 400
    refused = client.post("/v1/completions", json=BODY)
    assert refused.status_code == 503
    assert "repeat it with all tensors" in refused.json()["error"]["message"]
    sick = client.get("/health")
    assert sick.status_code == 503
    assert "repeat it with all tensors" in sick.json()["error"]["message"]
    assert client.get("/live").status_code == 200
    post(client, "/update_weights", json={"update_info": {"path": str(demo_folder)}})
    assert complete(client) == before


@pytest.mark.parametrize(
    ("path", "query", "field"),
    [
        ("/sleep", {"level": "7"}, "level"),
        ("/sleep", {"level": "deep"}, "level"),
        ("/sleep", {"level": "9" * 30}, "level"),
        ("/sleep", {"mode": "gently"}, "mode"),
        ("/wake_up", {"tags": "cache"}, "tags"),
        ("/pause", {"mode": "gently"}, "mode"),
        ("/pause", {"clear_cache": "perhaps"}, "clear_cache"),
    ],
)
def test_what_is_wrong_is_refused_by_name(client: httpx.Client, path: str, query: dict[str, str], field: str) -> None:
    refused = client.post(path, params=query)
    assert refused.status_code == 400, refused.text
    assert refused.json()["error"]["param"] == field
    assert client.get("/is_sleeping").json() == {"is_sleeping": False}


@pytest.mark.parametrize("path", ["/sleep", "/wake_up", "/pause", "/resume", "/update_weights", "/abort_requests"])
def test_other_servers_offer_nothing_of_this(http: httpx.Client, path: str) -> None:
    refused = http.post(path)
    assert refused.status_code == 404
    assert "--server-dev-mode" in refused.json()["error"]["message"]
