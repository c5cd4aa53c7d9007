"""Options of the server that change what the interface does, on a server of their own."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.serving.openai.test_pages import HTML
from tests.serving.server_process import SMALL, running

TEMPLATE = "{% for m in messages %}{{ m.content }}{{ mark }}{% endfor %}{{ reasoning_effort }}{{ tools or '' }}"
CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 2}


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    flags = [
        *SMALL, "--trust-request-chat-template", "--response-role", "model", "--enable-force-include-usage",
        "--return-tokens-as-token-ids", "--enable-request-id-headers", "--disable-docs", "--root-path", "/llm",
        "--chat-template", TEMPLATE, "--default-chat-template-kwargs", json.dumps({"mark": "!"}),
        "--max-stored-responses", "0", "--max-stored-files", "0", "--no-ui", "--enable-tokenizer-info-endpoint",
        "--reasoning-parser", "qwen3",
        "--exclude-tools-when-tool-choice-none", "--reasoning-effort-map", json.dumps({"medium": "low"}),
        "--fingerprint-mode", "custom", "--fingerprint-value", "mine", "--max-num-queued-reqs", "3",
        "--enable-per-request-metrics",
        "--middleware", "starlette.middleware.gzip:GZipMiddleware",
    ]  # fmt: skip
    log: Path = tmp_path_factory.mktemp("server") / "log"
    with running(log, "demo", *flags) as process, httpx.Client(base_url=process.url, timeout=60) as client:
        yield client


def prompt_of(http: httpx.Client, **fields: object) -> str:
    tokens = http.post("/tokenize", json={"messages": CHAT["messages"], **fields}).json()["tokens"]
    text: str = http.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
    return text


def test_templates_and_their_arguments(http: httpx.Client) -> None:
    assert prompt_of(http) == "hello!"
    assert prompt_of(http, chat_template_kwargs={"mark": "?"}) == "hello?"
    assert prompt_of(http, chat_template="{{ messages[0].content }} {{ mark }}") == "hello !"
    broken = http.post("/v1/chat/completions", json={**CHAT, "chat_template": "{{ messages[0"})
    assert broken.status_code == 400
    assert "template" in broken.json()["error"]["message"]


def test_the_role_and_tokens_of_answers(http: httpx.Client) -> None:
    (choice,) = http.post("/v1/chat/completions", json={**CHAT, "logprobs": True}).json()["choices"]
    assert choice["message"]["role"] == "model"
    assert all(item["token"].startswith("token_id:") for item in choice["logprobs"]["content"])
    asked = {**CHAT, "logprobs": True, "return_tokens_as_token_ids": False}
    (choice,) = http.post("/v1/chat/completions", json=asked).json()["choices"]
    assert not any(item["token"].startswith("token_id:") for item in choice["logprobs"]["content"])


def test_every_chunk_of_a_stream_has_the_usage_so_far(http: httpx.Client) -> None:
    for path, body in (("/v1/chat/completions", CHAT), ("/v1/completions", {"prompt": "hello", "max_tokens": 2})):
        for options in ({}, {"stream_options": {"include_usage": False}}):
            lines = http.post(path, json={**body, **options, "stream": True}).text.split("\n\n")
            *chunks, end = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
            assert not end["choices"]
            assert end["usage"]["completion_tokens"] == 2
            counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
            assert counts == sorted(counts)
            assert counts[-1] == 2
            if path == "/v1/chat/completions":
                assert counts[0] == 0, "the role is no token"
                assert chunks[0]["usage"]["total_tokens"] == end["usage"]["prompt_tokens"]


TIMES = {"time_to_first_token_ms", "generation_time_ms", "queue_time_ms", "mean_itl_ms", "tokens_per_second"}


@pytest.mark.parametrize(
    ("path", "body"), [("/v1/chat/completions", CHAT), ("/v1/completions", {"prompt": "hello", "max_tokens": 2})]
)
def test_times_of_a_request(http: httpx.Client, path: str, body: dict[str, object]) -> None:
    whole = http.post(path, json={**body, "ignore_eos": True}).json()["metrics"]
    assert whole.keys() == TIMES
    assert all(value >= 0 for value in whole.values())
    assert whole["mean_itl_ms"] == pytest.approx(whole["generation_time_ms"])
    inference = whole["time_to_first_token_ms"] + whole["generation_time_ms"]
    assert whole["tokens_per_second"] == pytest.approx(2e3 / inference)
    assert http.post(path, json={**body, "max_tokens": 1}).json()["metrics"]["mean_itl_ms"] is None
    lines = http.post(path, json={**body, "stream": True}).text.split("\n\n")
    *chunks, end = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    assert end["metrics"].keys() == TIMES
    assert end["metrics"]["queue_time_ms"] >= 0
    assert not any("metrics" in chunk for chunk in chunks)
    assert "metrics" not in http.post(path, json={**body, "n": 2}).json()


def test_efforts_tools_and_fingerprints(http: httpx.Client) -> None:
    tool = {"type": "function", "function": {"name": "look_up", "parameters": {}}}

    def prompt(**fields: object) -> str:
        answer = http.post("/v1/chat/completions", json={**CHAT, "return_token_ids": True, **fields}).json()
        assert answer["system_fingerprint"] == "mine"
        return str(http.post("/detokenize", json={"tokens": answer["prompt_token_ids"]}).json()["prompt"])

    assert prompt(reasoning_effort="medium") == "hello!low"
    assert prompt(reasoning_effort="high") == "hello!high"
    assert prompt(tools=[tool], tool_choice="none") == "hello!"


def test_requests_in_flight_are_limited(http: httpx.Client) -> None:
    body = {"prompt": "hello", "max_tokens": 1}
    assert http.post("/v1/completions", json={**body, "n": 3}).status_code == 200
    refused = http.post("/v1/completions", json={**body, "n": 4})
    assert refused.status_code == 400
    assert "3" in refused.json()["error"]["message"]


def test_the_tokenizers_settings(http: httpx.Client) -> None:
    info = http.get("/tokenizer_info").json()
    assert info["tokenizer_class"]
    assert info["chat_template"] == TEMPLATE
    assert isinstance(info["eos_token"], str)


def test_every_response_has_a_request_id(http: httpx.Client) -> None:
    first, second = (http.get("/version").headers["x-request-id"] for _ in range(2))
    assert first != second


def test_without_a_key_the_root_names_the_model(http: httpx.Client) -> None:
    page = http.get("/", headers=HTML).text
    assert "demo, version" in page
    assert 'href="/llm/v1/models"' in page
    assert "docs" not in page
    hostile = http.get("/", headers={**HTML, "Host": 'x"<script>y'})
    assert "<script>" not in hostile.text
    told = http.get("/").json()
    assert (told["model"], told["api"]) == ("demo", "/llm/v1")
    assert "docs" not in told


def test_no_pages_about_the_interface(http: httpx.Client) -> None:
    for path in ("/docs", "/openapi.json", "/ui/app.js", "/ui/about", "/ui/events"):
        assert http.get(path).status_code == 404


def test_middleware_of_the_operator(http: httpx.Client) -> None:
    response = http.post("/tokenize", json={"prompt": "hello " * 500})
    assert response.headers["content-encoding"] == "gzip"
    assert response.json()["count"] >= 500


def test_priorities_need_a_policy(http: httpx.Client) -> None:
    response = http.post("/v1/completions", json={"prompt": "hello", "priority": 1})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "priority"


def test_thinking_is_told_from_text(http: httpx.Client) -> None:
    asked = {"temperature": 0, "min_tokens": 20}
    budget = {"thinking_token_budget": 5, "max_output_tokens": 30}
    made = http.post("/v1/responses", json={"input": "hello", **asked, **budget}).json()
    assert [item["type"] for item in made["output"]] == ["reasoning", "message"]
    assert made["usage"]["output_tokens_details"]["reasoning_tokens"] == 5
    hidden = http.post("/v1/responses", json={"input": "hello", **asked, **budget, "include_reasoning": False}).json()
    assert [item["type"] for item in hidden["output"]] == ["message"]
    thinking = {"thinking": {"type": "enabled", "budget_tokens": 5}, "max_tokens": 30}
    message = http.post("/v1/messages", json={**asked, **thinking, "messages": CHAT["messages"]}).json()
    assert [block["type"] for block in message["content"]] == ["thinking", "text"]
    assert message["content"][0]["thinking"] == made["output"][0]["content"][0]["text"]
    assert message["content"][1]["text"] == made["output"][1]["content"][0]["text"]
    assert message["usage"]["output_tokens_details"]["thinking_tokens"] == 5


def test_a_server_that_keeps_no_responses(http: httpx.Client) -> None:
    asked = {"input": "hello", "max_output_tokens": 2}
    for field in ({"store": True}, {"background": True}, {"previous_response_id": "resp_1"}):
        refused = http.post("/v1/responses", json={**asked, **field})
        assert refused.status_code == 400
        assert refused.json()["error"]["param"] == next(iter(field))
        assert "--max-stored-responses" in refused.json()["error"]["message"]
    made = http.post("/v1/responses", json=asked).json()
    assert made["store"] is False
    assert http.get(f"/v1/responses/{made['id']}").status_code == 404
    assert "event: response.created" in http.post("/v1/responses", json={**asked, "stream": True}).text


@pytest.mark.parametrize("path", ["/v1/files", "/v1/batches"])
def test_a_server_that_keeps_no_files(http: httpx.Client, path: str) -> None:
    answer = http.get(path)
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_enabled")
