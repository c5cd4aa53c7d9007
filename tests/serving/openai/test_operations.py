"""Routes for operators, models and tokens; keys, request ids and CORS on the way to them."""

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

from jaxllm import __version__
from jaxllm.serving.text.tokenizer import Tokenizer
from tests.serving.openai.conftest import KEY, MAX_MODEL_LEN, NAMES, OTHER_KEY
from tests.serving.server_process import ServerProcess


@pytest.mark.parametrize("path", ["/health", "/live", "/ready", "/ping", "/metrics"])
def test_health_and_metrics_need_no_key(server: ServerProcess, path: str) -> None:
    assert httpx.get(server.url + path).status_code == 200


@pytest.mark.parametrize("key", [KEY, OTHER_KEY])
def test_every_key_opens(server: ServerProcess, key: str) -> None:
    for scheme in ("Bearer", "bearer"):
        headers = {b"Authorization": f"{scheme} {key}".encode()}
        assert httpx.get(f"{server.url}/version", headers=headers).json() == {"version": __version__}


def test_models(client: OpenAI) -> None:
    models = client.models.list().data
    assert [model.id for model in models] == list(NAMES)
    assert models[0].model_dump()["max_model_len"] == MAX_MODEL_LEN
    assert client.models.retrieve("org/demo") == models[1]


@pytest.mark.parametrize("text", ["hello", "  two  spaces\n", "\N{SNOWMAN} 日本語", "<|im_start|>user", ""])
def test_tokens_and_back(http: httpx.Client, text: str) -> None:
    found = http.post("/tokenize", json={"prompt": text, "return_token_strs": True}).json()
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"])
    assert found["max_model_len"] == MAX_MODEL_LEN
    assert http.post("/detokenize", json={"tokens": found["tokens"]}).json() == {"prompt": text}


def test_tokens_as_the_vocabulary_has_them(http: httpx.Client, demo_folder: Path) -> None:
    vocabulary = Tokenizer.load(demo_folder).hf
    found = http.post("/tokenize", json={"prompt": "<|im_start|>once upon a time\n", "return_token_strs": True}).json()
    assert found["token_strs"] == vocabulary.convert_ids_to_tokens(found["tokens"])
    assert any(" " not in token and "\u0120" in token for token in found["token_strs"])


def test_tokenizer_info_is_offered_only_on_demand(http: httpx.Client) -> None:
    answer = http.get("/tokenizer_info")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_enabled")
    assert "--enable-tokenizer-info-endpoint" in answer.json()["error"]["message"]


def test_tokens_of_a_conversation_are_those_of_its_completion(http: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": "hello"}]}
    answer = http.post("/v1/chat/completions", json={**body, "max_tokens": 1, "return_token_ids": True}).json()
    assert http.post("/tokenize", json=body).json()["tokens"] == answer["prompt_token_ids"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": []}, "prompt"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/tokenize", {"prompt": "x", "model": "other"}, "model"),
        ("/tokenize", {"promt": "x"}, "promt"),
        ("/detokenize", {"tokens": [1, -1]}, "tokens[1]"),
        ("/detokenize", {"tokens": [10**30]}, "tokens[0]"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
    ],
)
def test_wrong_questions_about_tokens(http: httpx.Client, path: str, body: object, param: str) -> None:
    response = http.post(path, json=body)
    assert response.status_code in (400, 404)
    assert response.json()["error"]["param"] == param


def wait_until_idle(http: httpx.Client) -> None:
    """Streams of earlier tests are counted until the server has noticed that their clients left."""
    deadline = time.monotonic() + 30
    while http.get("/load").json()["server_load"] and time.monotonic() < deadline:
        time.sleep(0.05)


def test_load_counts_requests(http: httpx.Client) -> None:
    wait_until_idle(http)
    body = {"prompt": "hello", "n": 24, "max_tokens": 250, "ignore_eos": True, "stream": True}
    with http.stream("POST", "/v1/completions", json=body) as response:
        lines = response.iter_lines()
        next(lines)
        assert http.get("/load").json()["server_load"] == 1
        assert http.post("/reset_prefix_cache").status_code == 503


def test_load_counts_requests_and_not_their_prompts(http: httpx.Client) -> None:
    wait_until_idle(http)
    body = {"prompt": ["hello", "you"], "n": 12, "max_tokens": 250, "ignore_eos": True, "stream": True}
    with http.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200
        lines = response.iter_lines()
        next(lines)
        assert http.get("/load").json()["server_load"] == 1


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "hello"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hello"}]}),
    ],
)
def test_the_load_of_the_engine_in_a_header(http: httpx.Client, path: str, body: dict[str, Any], stream: bool) -> None:
    def reported(asked: str) -> str | None:
        headers = {"endpoint-load-metrics-format": asked}
        answer = http.post(path, json={**body, "max_tokens": 1, "stream": stream}, headers=headers)
        assert answer.status_code == 200
        return answer.headers.get("endpoint-load-metrics")

    for asked in ("TEXT", "text"):
        kind, _, rest = (reported(asked) or "").partition(" ")
        found = dict(each.split("=") for each in rest.split(", "))
        assert kind == "TEXT"
        assert found.keys() == {"named_metrics.kv_cache_usage_perc", "named_metrics.num_requests_waiting"}
        assert all(float(value) >= 0 for value in found.values())
    kind, _, rest = (reported("JSON") or "").partition(" ")
    assert kind == "JSON"
    assert json.loads(rest)["named_metrics"].keys() == {"kv_cache_usage_perc", "num_requests_waiting"}
    assert reported("BIN") is None
    assert reported("") is None


def test_metrics_count_tokens(http: httpx.Client) -> None:
    def generated() -> float:
        text = http.get("/metrics").text
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return sum(sample.value for sample in samples if sample.name == "jaxllm:generation_tokens_total")

    before = generated()
    http.post("/v1/completions", json={"prompt": "hello", "max_tokens": 7, "ignore_eos": True}).raise_for_status()
    assert generated() == before + 7


def test_request_ids(http: httpx.Client) -> None:
    body = {"prompt": "hello", "max_tokens": 1}
    response = http.post("/v1/completions", json=body, headers={"X-Request-Id": "mine-1"})
    assert response.headers["x-request-id"] == "mine-1"
    assert response.json()["id"] == "cmpl-mine-1"
    assert http.post("/v1/completions", json={**body, "request_id": "mine-2"}).json()["id"] == "cmpl-mine-2"
    first, second = (http.post("/v1/completions", json=body).json()["id"] for _ in range(2))
    assert first != second
    odd = http.get("/version", headers={"X-Request-Id": "not sensible"})
    assert "x-request-id" not in odd.headers


def test_requests_are_logged_under_their_ids(server: ServerProcess, http: httpx.Client) -> None:
    body = {"prompt": "a prompt of more than twenty characters", "max_tokens": 1}
    http.post("/v1/completions", json=body, headers={"X-Request-Id": "logged"}).raise_for_status()
    lines = [json.loads(line) for line in server.log.splitlines() if line.startswith("{")]
    (line,) = [line for line in lines if line.get("request_id") == "logged"]
    assert "'a prompt of more tha'" in line["message"]


def test_one_id_for_two_requests_at_the_same_time(http: httpx.Client) -> None:
    body = {"prompt": "hello", "max_tokens": 100, "ignore_eos": True, "stream": True, "request_id": "twice"}
    with (
        http.stream("POST", "/v1/completions", json=body) as one,
        http.stream("POST", "/v1/completions", json=body) as other,
    ):
        for response in (one, other):
            *_, last, _ = [line for line in response.iter_lines() if line]
            assert json.loads(last.removeprefix("data: "))["id"] == "cmpl-twice"


def test_pages_of_other_origins(server: ServerProcess) -> None:
    origin = {"Origin": "http://elsewhere"}
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    preflight = httpx.options(f"{server.url}/v1/completions", headers={**origin, **asked})
    assert preflight.status_code == 200
    assert preflight.headers["access-control-allow-origin"] == "*"
    refused = httpx.get(f"{server.url}/v1/models", headers=origin)
    assert refused.status_code == 401
    assert refused.headers["access-control-allow-origin"] == "*", "the page must be able to read why"


def test_the_page_shows_the_document(http: httpx.Client) -> None:
    assert "openapi.json" in http.get("/docs").text
    assert http.get("/openapi.json").json()["openapi"] == "3.1.0"
