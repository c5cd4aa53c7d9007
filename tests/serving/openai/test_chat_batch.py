"""Several conversations in one request."""

from typing import Any

import httpx
import pytest

from tests.serving.openai.conftest import MAX_SEQUENCES

PATH = "/v1/chat/completions/batch"
QUESTIONS = ("What is 2 + 3?", "hello", "Tell me a story.")
CONVERSATIONS = [[{"role": "user", "content": text}] for text in QUESTIONS]
SETTINGS: dict[str, Any] = {"temperature": 0, "max_tokens": 12, "logprobs": True, "top_logprobs": 1}


def test_each_is_answered_as_alone(http: httpx.Client) -> None:
    batch = http.post(PATH, json={"messages": CONVERSATIONS, **SETTINGS, "return_token_ids": True}).json()
    alone = [
        http.post("/v1/chat/completions", json={"messages": messages, **SETTINGS, "return_token_ids": True}).json()
        for messages in CONVERSATIONS
    ]
    assert [choice["index"] for choice in batch["choices"]] == [0, 1, 2]
    for choice, answer in zip(batch["choices"], alone, strict=True):
        for name in ("message", "finish_reason", "token_ids"):
            assert choice[name] == answer["choices"][0][name]
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert batch["usage"][name] == sum(answer["usage"][name] for answer in alone)
    assert (batch["object"], batch["prompt_token_ids"]) == ("chat.completion", None)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [CONVERSATIONS[0]] * (MAX_SEQUENCES + 1)}, "messages"),
        ({"messages": CONVERSATIONS[0]}, "messages[0]"),
        ({"messages": [CONVERSATIONS[0], []]}, "messages[1]"),
        ({"messages": [CONVERSATIONS[0], [{"role": "user"}]]}, "messages[1][0]"),
        ({"messages": [[{"role": "user", "content": "a", "audio": {}}]]}, "messages[0][0].audio"),
        ({"stream": True}, "stream"),
        ({"n": 2}, "n"),
        ({"use_beam_search": True}, "use_beam_search"),
        ({"tools": [{"type": "function", "function": {"name": "f"}}]}, "tools"),
        ({"temperature": -1}, "temperature"),
        ({"model": "other"}, "model"),
    ],
)
def test_what_is_refused(http: httpx.Client, fields: dict[str, Any], param: str) -> None:
    response = http.post(PATH, json={"messages": CONVERSATIONS, **fields})
    assert response.status_code in (400, 404), response.text
    assert response.json()["error"]["param"] == param
