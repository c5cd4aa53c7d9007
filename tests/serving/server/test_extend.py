"""An operator's own FastAPI router and middleware in a server, as docs/extend.md shows them."""

import re
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.serving.server_process import SMALL, ServerProcess, running

ROOT = Path(__file__).resolve().parents[3]
KEY = "a-key"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("extended")
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "extend.md").read_text(encoding="utf-8"), re.DOTALL)
    (folder / "my_server.py").write_text("\n\n".join(blocks), encoding="utf-8")
    own = ("--include-router", "my_server.router", "--middleware", "my_server.Stopwatch", "my_server:no_robots")
    path = {"PYTHONPATH": f"{folder}:{ROOT}"}
    with running(folder / "log", "demo", *SMALL, *own, "--api-key", KEY, environment=path) as process:
        yield process


@pytest.fixture
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {KEY}"}, timeout=60) as client:
        yield client


def test_the_operators_routes_answer_beside_ours(http: httpx.Client) -> None:
    assert http.get("/office/load").json() == {"model": "demo", "requests": 0}
    assert http.get("/v1/models").json()["data"][0]["id"] == "demo"
    assert http.get("/office/load", headers={"Authorization": ""}).status_code == 401
    assert http.get("/office/nothing").json()["error"]["code"] == "unknown_url"


def test_dependencies_check_the_operators_routes(http: httpx.Client) -> None:
    assert http.post("/office/notes", json={"text": "hello"}).status_code == 403
    noted = http.post("/office/notes", json={"text": "hello"}, headers={"X-Role": "editor"})
    assert noted.json() == {"words": 1}
    wrong = http.post("/office/notes", json={"text": 3}, headers={"X-Role": "editor"})
    assert wrong.status_code == 422


def test_the_document_has_the_operators_routes(http: httpx.Client) -> None:
    document = http.get("/openapi.json").json()
    assert {"/office/load", "/office/notes", "/v1/chat/completions"} <= document["paths"].keys()
    assert {"Note", "ChatCompletionRequest"} <= document["components"]["schemas"].keys()


def test_the_operators_middleware_sees_our_answers(http: httpx.Client) -> None:
    body = {"prompt": "Once", "max_tokens": 3, "stream": True}
    with http.stream("POST", "/v1/completions", json=body) as response:
        lines = [line for line in response.iter_lines() if line]
    assert response.status_code == 200
    assert float(response.headers["x-seconds"]) > 0
    assert lines[-1] == "data: [DONE]"
    assert http.get("/v1/models", headers={"User-Agent": "a robot"}).status_code == 403
