"""Reasoning, through a real server: the demo model with a chat template that lets it think."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI

from scripts.demo_model import calls as demo_calls
from tests.serving.server_process import SMALL, running

THINKING = (
    "{%- if enable_thinking is defined and not enable_thinking %}{{- '<think>\\n\\n</think>\\n\\n' }}"
    "{%- else %}{{- '<think>\\n' }}{%- endif %}"
)
# Demo has not learned to think, and would end its answer there.
ASKED: dict[str, Any] = {
    "messages": [{"role": "user", "content": "What is 2 + 3?"}],
    "temperature": 0,
    "min_tokens": 16,
}
BUDGET = 6


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory, demo_folder: Path) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("server")
    template = (demo_folder / "chat_template.jinja").read_text()
    head, opening, tail = template.rpartition("{%- endif %}")
    (folder / "template.jinja").write_text(head + THINKING + opening + tail)
    flags = [*SMALL, "--chat-template", str(folder / "template.jinja"), "--reasoning-parser", "qwen3"]
    with running(folder / "log", "demo", *flags) as process, httpx.Client(base_url=process.url, timeout=120) as client:
        yield client


def ask(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    response = http.post("/v1/chat/completions", json={**ASKED, **fields})
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def test_reasoning_without_end_is_reasoning(http: httpx.Client) -> None:
    answer = ask(http, max_tokens=16)
    message = answer["choices"][0]["message"]
    assert message["content"] is None
    assert message["reasoning_content"] == message["reasoning"] != ""
    details = answer["usage"]["completion_tokens_details"]
    assert 0 < details["reasoning_tokens"] <= answer["usage"]["completion_tokens"] <= 16


def test_a_budget_ends_it(http: httpx.Client) -> None:
    answer = ask(http, thinking_token_budget=BUDGET, max_tokens=60)
    (choice,) = answer["choices"]
    assert choice["message"]["reasoning"]
    assert choice["message"]["content"]
    assert "</think>" not in choice["message"]["content"]
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == BUDGET
    hidden = ask(http, thinking_token_budget=BUDGET, max_tokens=60, include_reasoning=False)
    assert hidden["choices"][0]["message"]["reasoning"] is None
    assert hidden["choices"][0]["message"]["content"] == choice["message"]["content"]
    assert hidden["usage"] == {**answer["usage"], "prompt_tokens_details": hidden["usage"]["prompt_tokens_details"]}


def test_a_stream_is_the_same(http: httpx.Client) -> None:
    whole = ask(http, thinking_token_budget=BUDGET, max_tokens=60)
    with OpenAI(base_url=f"{http.base_url}/v1", api_key="none", max_retries=0) as client:
        chunks = list(
            client.chat.completions.create(
                model="demo", messages=ASKED["messages"], temperature=0, max_tokens=60, stream=True,
                stream_options={"include_usage": True}, extra_body={"thinking_token_budget": BUDGET, "min_tokens": 16},
            )
        )  # fmt: skip
    deltas = [choice.delta.model_dump(exclude_unset=True) for chunk in chunks for choice in chunk.choices]
    message = whole["choices"][0]["message"]
    for name in ("reasoning", "reasoning_content", "content"):
        assert "".join(delta.get(name) or "" for delta in deltas) == message[name]
    # On a busy machine the tokens of several steps arrive as one delta.
    assert len([delta for delta in deltas if "reasoning" in delta]) > 1
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens_details is not None
    assert chunks[-1].usage.completion_tokens_details.reasoning_tokens == BUDGET


def test_no_reasoning_where_the_template_closes_it(http: httpx.Client) -> None:
    for fields in ({"chat_template_kwargs": {"enable_thinking": False}}, {"reasoning_effort": "none"}):
        answer = ask(http, max_tokens=20, **fields)
        assert answer["choices"][0]["message"]["reasoning"] is None
        assert answer["choices"][0]["message"]["content"]
        assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0


def test_forms_apply_to_the_answer(http: httpx.Client) -> None:
    answer = ask(http, thinking_token_budget=BUDGET, max_tokens=60, structured_outputs={"choice": ["five", "six"]})
    assert answer["choices"][0]["message"]["content"] in ("five", "six")
    assert answer["choices"][0]["message"]["reasoning"]
    closed = ask(http, max_tokens=60, structured_outputs={"choice": ["five", "six"]}, reasoning_effort="none")
    assert closed["choices"][0]["message"]["content"] in ("five", "six")
    assert closed["choices"][0]["message"]["reasoning"] is None


def test_calls_behind_reasoning(http: httpx.Client) -> None:
    tools = [demo_calls.TOOLS["buy"]]
    answer = ask(http, thinking_token_budget=BUDGET, max_tokens=80, tools=tools, tool_choice="required")
    (choice,) = answer["choices"]
    assert choice["message"]["reasoning"]
    assert choice["message"]["tool_calls"][0]["function"]["name"] == "buy"
    assert choice["finish_reason"] == "tool_calls"
