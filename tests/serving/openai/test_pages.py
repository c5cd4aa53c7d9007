"""Pages for browsers, and hints for paths that are nearly right."""

import re

import httpx
import pytest

from tests.serving.openai.conftest import KEY
from tests.serving.server_process import ServerProcess

HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def test_the_docs_need_no_key_and_nothing_from_elsewhere(server: ServerProcess) -> None:
    page = httpx.get(f"{server.url}/docs", headers=HTML, timeout=60)
    assert page.status_code == 200
    assert page.headers["content-type"].startswith("text/html")
    assert "openapi.json" in page.text
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//|@import|url\(""", page.text)
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert httpx.get(f"{server.url}/openapi.json", timeout=60).status_code == 401
    with_key = httpx.get(f"{server.url}/openapi.json", headers={"Authorization": f"Bearer {KEY}"}, timeout=60)
    assert with_key.json()["info"]["title"] == "jaxllm"


def test_the_root_says_what_the_server_is(server: ServerProcess) -> None:
    page = httpx.get(server.url, headers=HTML, timeout=60)
    assert page.status_code == 200
    assert 'src="/ui/app.js"' in page.text
    assert "demo" not in page.text, "only who knows the key may know the model"
    told = httpx.get(server.url, timeout=60).json()
    assert told == {"server": "jaxllm", "api": "/v1", "docs": "/docs", "openapi": "/openapi.json"}
    reflected = httpx.get(server.url, headers={**HTML, "Host": 'x"<script>y'}, timeout=60)
    assert "<script>" not in reflected.text


@pytest.mark.parametrize(
    ("path", "right"),
    [
        ("/v1/v1/chat/completions", "/v1/chat/completions"),
        ("/v1/v1/models", "/v1/models"),
        ("/v1/v1/messages", "/v1/messages"),
        ("/v1/chat/completions/", "/v1/chat/completions"),
        ("/v1/models/", "/v1/models"),
        ("/chat/completions", "/v1/chat/completions"),
        ("/completions", "/v1/completions"),
        ("/v1//chat/completions", "/v1/chat/completions"),
        ("/v1/health", "/health"),
        ("/v1/tokenize/", "/tokenize"),
        ("/api/v1/messages", "/v1/messages"),
        ("/v1/chat/completion", "/v1/chat/completions"),
        ("/metric", "/metrics"),
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
def test_a_wrong_path_is_told_the_right_one(http: httpx.Client, method: str, path: str, right: str) -> None:
    if method == "POST" and path == "/v1/models/":
        pytest.skip("its models can only be read")
    answer = http.request(method, path, json={} if method == "POST" else None)
    assert answer.status_code == 404
    error = answer.json()["error"]
    assert error["code"] == "unknown_url"
    assert f"did you mean {right!r}" in error["message"]
    if "base URL" in error["message"]:
        # Anthropic's clients add /v1 themselves.
        assert error["message"].endswith("without /v1" if right == "/v1/messages" else "ends with /v1")


def test_other_paths_get_no_hint(http: httpx.Client) -> None:
    for path in ("/nothing/like/it", "/" + "x" * 5000):
        assert "did you mean" not in http.get(path).text
