"""Streams of several tokens at a time, and texts that go in circles."""

import json
from typing import Any

import httpx
import pytest

SAME: dict[str, Any] = {"temperature": 0, "logit_bias": {"300": 100}, "return_token_ids": True, "ignore_eos": True}
"""The same token again and again."""
CIRCLES = {"max_pattern_size": 3, "min_count": 4}


def asked(path: str, **fields: Any) -> dict[str, Any]:
    prompt = {"messages": [{"role": "user", "content": "hi"}]} if "chat" in path else {"prompt": "Once upon a time"}
    return {**prompt, **fields}


def streamed(http: httpx.Client, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    with http.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200, response.read()
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
def test_a_text_that_goes_in_circles_ends(http: httpx.Client, path: str) -> None:
    body = asked(path, **SAME, max_tokens=40, repetition_detection=CIRCLES)
    (choice,) = http.post(path, json=body).json()["choices"]
    assert choice["token_ids"] == [300] * 4
    assert (choice["finish_reason"], choice["stop_reason"]) == ("repetition", "repetition_detected")
    choices = [each for event in streamed(http, path, body) for each in event["choices"]]
    assert [token for each in choices for token in each.get("token_ids") or ()] == [300] * 4
    assert choices[-1]["finish_reason"] == "repetition"
    later = asked(path, **SAME, max_tokens=40, repetition_detection=CIRCLES, min_tokens=9)
    assert len(http.post(path, json=later).json()["choices"][0]["token_ids"]) == 9
    (free,) = http.post(path, json=asked(path, **SAME, max_tokens=40)).json()["choices"]
    assert len(free["token_ids"]) == 40


def test_other_interfaces_say_so_in_their_words(http: httpx.Client) -> None:
    fields = {name: value for name, value in SAME.items() if name != "return_token_ids"}
    fields["repetition_detection"] = CIRCLES
    response = http.post("/v1/responses", json={"input": "hi", **fields}).json()
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": "repetition"})
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 40, "model": "demo", **fields}
    message = http.post("/v1/messages", json=body).json()
    assert (message["stop_reason"], message["stop_sequence"]) == ("max_tokens", None)
    assert message["usage"]["output_tokens"] == 4


def test_a_call_that_goes_in_circles_is_no_use_of_a_tool(http: httpx.Client) -> None:
    numbers = {"type": "array", "items": {"const": 1}, "minItems": 60}
    tool = {"name": "f", "input_schema": {"type": "object", "properties": {"a": numbers}, "required": ["a"]}}
    body = {
        "messages": [{"role": "user", "content": "hi"}], "max_tokens": 120, "model": "demo", "tools": [tool],
        "tool_choice": {"type": "any"}, "repetition_detection": {"max_pattern_size": 8, "min_count": 3},
    }  # fmt: skip
    message = http.post("/v1/messages", json=body).json()
    assert message["usage"]["output_tokens"] < 120
    assert message["stop_reason"] == "max_tokens"


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize("more", [{}, {"return_token_ids": True}, {"n": 2}])
def test_an_event_brings_several_tokens(http: httpx.Client, path: str, more: dict[str, Any]) -> None:
    body = asked(path, seed=1, max_tokens=25, ignore_eos=True, **more)

    def texts(interval: int) -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        for event in streamed(http, path, {**body, "stream_interval": interval}):
            for choice in event["choices"]:
                text = choice["delta"].get("content") if "chat" in path else choice["text"]
                found.setdefault(choice["index"], []).extend([text] if text else [])
        return found

    single, several = texts(1), texts(6)
    assert single.keys() == several.keys()
    for index, pieces in several.items():
        assert "".join(pieces) == "".join(single[index])
        # The first token, four times six, and no more.
        assert len(pieces) <= 5 < len(single[index])


def test_a_prompt_may_be_computed_though_it_is_cached(http: httpx.Client) -> None:
    body = {"prompt": [300 + index for index in range(100)], "max_tokens": 2, "temperature": 0, "cache_salt": "skip"}

    def cached(**fields: Any) -> tuple[int, str]:
        answer = http.post("/v1/completions", json={**body, **fields}).json()
        return answer["usage"]["prompt_tokens_details"]["cached_tokens"], answer["choices"][0]["text"]

    nothing, text = cached()
    assert (nothing, cached(skip_reading_prefix_cache=True)) == (0, (0, text))
    assert cached(skip_reading_prefix_cache=False)[0] > 0


@pytest.mark.parametrize(
    ("fields", "name"),
    [({"stream_interval": 0}, "stream_interval"), ({"stream_interval": "x"}, "stream_interval"),
     ({"repetition_detection": {"max_pattern_size": 2, "min_count": 1}}, "min_count"),
     ({"repetition_detection": {"max_pattern_size": 10**9, "min_count": 2}}, "max_pattern_size"),
     ({"repetition_detection": {"size": 2}}, "repetition_detection.size"),
     ({"repetition_detection": CIRCLES, "use_beam_search": True, "n": 2}, "repetition_detection")],
)  # fmt: skip
def test_errors(http: httpx.Client, fields: dict[str, Any], name: str) -> None:
    response = http.post("/v1/completions", json=asked("/v1/completions", **fields))
    assert (response.status_code, response.json()["error"]["param"]) == (400, name), response.text
