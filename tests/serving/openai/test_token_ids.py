"""Requests rendered, generated as token ids, and read again: the answers are those of the requests themselves."""

import json
from itertools import chain
from typing import Any

import httpx
import pytest

from tests.serving.openai.conftest import MAX_MODEL_LEN, MAX_SEQUENCES

GENERATE = "/inference/v1/generate"
CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
    "temperature": 0.8,
    "seed": 5,
    "max_tokens": 24,
}
WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CHATS: dict[str, dict[str, Any]] = {
    "plain": {},
    "greedy": {"temperature": 0},
    "several": {"n": 3},
    "to the end of the context": {"max_tokens": None, "temperature": 0, "ignore_eos": True},
    "stop string": {"stop": [" the", "."], "temperature": 0},
    "stop string kept": {"stop": ["."], "include_stop_str_in_output": True, "temperature": 0},
    "stop token": {"stop_token_ids": [16, 18, 262], "temperature": 0},
    "logprobs": {"logprobs": True, "top_logprobs": 3},
    "listed logprobs": {"logprobs": True, "logprob_token_ids": [281, 305]},
    "call": {"tools": [WEATHER], "tool_choice": "required"},
    "tools": {"tools": [WEATHER]},
    "schema": {"structured_outputs": {"json": {"type": "object", "properties": {"a": {"type": "integer"}}}}},
    "choice": {"guided_choice": ["yes", "no"]},
    "bad words": {"bad_words": ["the", "a"], "logit_bias": {"300": -5}, "min_tokens": 3, "repetition_penalty": 1.2},
    "salted": {"cache_salt": "abc", "priority": 3, "truncate_prompt_tokens": 20},
}
DIFFERENT = ("id", "created")


def post(http: httpx.Client, path: str, body: dict[str, Any]) -> Any:
    response = http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


def comparable(answer: dict[str, Any]) -> dict[str, Any]:
    """Without ids, times, and what depends on what was asked before."""
    text = json.dumps({name: value for name, value in answer.items() if name not in DIFFERENT})
    plain: dict[str, Any] = json.loads(text)
    plain["usage"].pop("prompt_tokens_details")
    for choice in plain["choices"]:
        for call in choice.get("message", {}).get("tool_calls") or ():
            del call["id"]
    return plain


def nearly(value: Any) -> Any:
    """Equal to this but for the last digits of numbers, which hang on what is cached."""
    match value:
        case dict():
            return {name: nearly(each) for name, each in value.items()}
        case list():
            return [nearly(each) for each in value]
        case float():
            return pytest.approx(value, abs=1e-4)
    return value


@pytest.mark.parametrize("change", CHATS.values(), ids=CHATS)
def test_a_chat_is_the_same_in_three_steps(http: httpx.Client, change: dict[str, Any]) -> None:
    body = {**CHAT, **change}
    rendered = post(http, "/v1/chat/completions/render", body)
    generated = post(http, GENERATE, rendered)
    assert generated["usage"]["prompt_tokens"] == len(rendered["token_ids"])
    assert all("text" not in choice for choice in generated["choices"])
    answer = post(http, "/v1/chat/completions/derender", {"generate_response": generated, "chat_request": body})
    assert comparable(answer) == nearly(comparable(post(http, "/v1/chat/completions", body)))


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"n": 2},
        {"logprobs": 2},
        {"stop": ["the"], "temperature": 0},
        {"max_tokens": None},
        {"prompt": [[5, 6], [7]]},
    ],
)
def test_completions_are_the_same_in_three_steps(http: httpx.Client, change: dict[str, Any]) -> None:
    body = {"prompt": ["Once upon a time", "The cat"], "temperature": 0.8, "seed": 5, "max_tokens": 12, **change}
    rendered = post(http, "/v1/completions/render", body)
    generated = [post(http, GENERATE, each) for each in rendered]
    answer = post(http, "/v1/completions/derender", {"generate_responses": generated, "completion_request": body})
    assert comparable(answer) == nearly(comparable(post(http, "/v1/completions", body)))


def test_messages_and_responses_are_rendered_as_chats(http: httpx.Client) -> None:
    messages = CHAT["messages"]
    chat = post(http, "/v1/chat/completions/render", {"messages": messages, "max_tokens": 9, "temperature": 0})
    message = post(
        http, "/v1/messages/render", {"messages": messages, "max_tokens": 9, "temperature": 0, "model": "demo"}
    )
    response = post(
        http, "/v1/responses/render", {"input": messages, "max_output_tokens": 9, "temperature": 0, "model": "demo"}
    )
    for each in (message, response):
        assert each["token_ids"] == chat["token_ids"]
        assert each["sampling_params"] == chat["sampling_params"]
    whole = post(http, "/v1/responses", {"input": messages, "max_output_tokens": 9, "temperature": 0})
    text = post(http, GENERATE, {**response, "output_mode": "text"})["choices"][0]["text"]
    assert whole["output"][0]["content"][0]["text"] == text


@pytest.mark.parametrize("mode", ["tokens", "text"])
@pytest.mark.parametrize("more", [{}, {"n": 2}, {"logprobs": 2}, {"stop": [" the"]}])
def test_a_stream_brings_what_the_whole_answer_has(http: httpx.Client, mode: str, more: dict[str, Any]) -> None:
    body: dict[str, Any] = {
        "token_ids": [300, 301, 302],
        "sampling_params": {"max_tokens": 16, "seed": 1, "ignore_eos": True, **more},
        "output_mode": mode,
        "return_token_ids": True,
    }
    whole = post(http, GENERATE, body)
    asked = {**body, "stream": True, "stream_options": {"include_usage": True}}
    with http.stream("POST", GENERATE, json=asked) as response:
        lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
    assert lines[-1] == "[DONE]"
    chunks = [json.loads(line) for line in lines[:-1]]
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"] == body["token_ids"]
    assert all("prompt_token_ids" not in chunk for chunk in chunks[1:])
    usage = {name: value for name, value in chunks[-1]["usage"].items() if name != "prompt_tokens_details"}
    assert usage.items() <= whole["usage"].items()
    for choice in whole["choices"]:
        news = [each for chunk in chunks for each in chunk["choices"] if each["index"] == choice["index"]]
        assert len(news) > 1
        assert [*chain.from_iterable(each["token_ids"] for each in news)] == choice["token_ids"]
        assert news[-1]["finish_reason"] == choice["finish_reason"]
        if mode == "text":
            assert "".join(each["text"] for each in news) == choice["text"]
        if "logprobs" in more:
            listed = [*chain.from_iterable(each["logprobs"]["content"] for each in news)]
            assert listed == nearly(choice["logprobs"]["content"])


def test_left_out_parameters_are_those_of_the_class(http: httpx.Client) -> None:
    body = {"token_ids": [300], "sampling_params": {"temperature": 0, "ignore_eos": True}}
    (choice,) = post(http, GENERATE, body)["choices"]
    assert len(choice["token_ids"]) == MAX_MODEL_LEN - 1
    assert choice["finish_reason"] == "length"


def test_without_the_request_all_text_is_content(http: httpx.Client) -> None:
    token_ids = post(http, "/tokenize", {"prompt": "Once upon a time", "add_special_tokens": False})["tokens"]
    content = [{"token_id": each, "logprob": -1.5, "rank": 1} for each in token_ids]
    choice = {"index": 0, "token_ids": token_ids, "finish_reason": "length", "logprobs": {"content": content}}
    given = {"choices": [choice]}
    chat = post(http, "/v1/chat/completions/derender", {"generate_response": given, "prompt_tokens": 7})
    assert chat["choices"][0]["message"]["content"] == "Once upon a time"
    assert [each["logprob"] for each in chat["choices"][0]["logprobs"]["content"]] == [-1.5] * len(token_ids)
    assert (chat["usage"]["prompt_tokens"], chat["usage"]["total_tokens"]) == (7, 7 + len(token_ids))
    body = {"generate_responses": [given, given], "prompt_token_ids": [[1, 2], None], "prompt_tokens": [9, 9]}
    completion = post(http, "/v1/completions/derender", body)
    assert [each["text"] for each in completion["choices"]] == ["Once upon a time"] * 2
    assert completion["usage"]["prompt_tokens"] == 2


TOKENS: dict[str, Any] = {"token_ids": [300], "sampling_params": {"max_tokens": 2}}
WRONG_TOKENS: list[tuple[dict[str, Any], str]] = [
    ({"token_ids": []}, "token_ids"),
    ({"token_ids": [10**9]}, "token_ids"),
    ({"token_ids": [10**30]}, "token_ids"),
    ({"token_ids": [-1]}, "token_ids"),
    ({"token_ids": [300] * MAX_MODEL_LEN}, "token_ids"),
    ({"token_ids": "text"}, "token_ids"),
    ({"sampling_params": {"max_tokens": 0}}, "sampling_params.max_tokens"),
    ({"sampling_params": {"max_tokens": MAX_MODEL_LEN + 1}}, "sampling_params.max_tokens"),
    ({"sampling_params": {"temprature": 0}}, "sampling_params.temprature"),
    ({"sampling_params": {"n": MAX_SEQUENCES + 1}}, "sampling_params.n"),
    ({"sampling_params": {"n": 2, "best_of": 3}, "stream": True}, "sampling_params.best_of"),
    ({"sampling_params": {"logprobs": 10**6}}, "sampling_params.logprobs"),
    ({"sampling_params": {"logprobs": -1}}, "sampling_params.logprobs"),
    ({"sampling_params": {"beam_search": {"width": 4}}}, "sampling_params.beam_search"),
    ({"sampling_params": {"bad_words_token_ids": [[1]]}}, "sampling_params.bad_words_token_ids"),
    ({"sampling_params": {"output_kind": 1}}, "sampling_params.output_kind"),
    ({"sampling_params": {"structured_outputs": {"json": {}, "regex": "a"}}}, "sampling_params"),
    ({"sampling_params": {"structured_outputs": {"regex": "("}}}, "sampling_params.regex"),
    ({"sampling_params": {"stop_token_ids": [10**6]}}, "sampling_params.stop_token_ids"),
    ({"sampling_params": {"detokenize": False}, "output_mode": "text"}, "sampling_params.detokenize"),
    ({"sampling_params": [1]}, "sampling_params"),
    ({"sampling_params": {"self": 1}}, "sampling_params.self"),
    ({"sampling_params": {"structured_outputs": {"self": 1}}}, "sampling_params.self"),
    ({"sampling_params": {"repetition_detection": {"self": 1}}}, "sampling_params.self"),
    ({"reasoning_end_token_ids": [10**6]}, "reasoning_end_token_ids"),
    ({"reasoning_end_token_ids": []}, "reasoning_end_token_ids"),
    ({"output_mode": "derender"}, "output_mode"),
    ({"features": {"mm_hashes": {}}}, "features"),
    ({"stream_options": {"include_usage": True}}, "stream_options"),
    ({"cache_salt": ""}, "cache_salt"),
    ({"request_id": "a b"}, "request_id"),
    ({"priority": 2**70}, "priority"),
    ({"token_id": 1}, "token_id"),
]


@pytest.mark.parametrize(("change", "field"), WRONG_TOKENS)
def test_wrong_requests_name_the_field(http: httpx.Client, change: dict[str, Any], field: str) -> None:
    response = http.post(GENERATE, json={**TOKENS, **change})
    assert response.status_code == 400, response.text
    assert (response.json()["error"]["param"] or "").startswith(field), response.text


CHOICE: dict[str, Any] = {"index": 0, "token_ids": [300, 301], "finish_reason": "stop"}
RIGHT_LOGPROBS = {"content": [{"token_id": 300, "logprob": -1}, {"token_id": 301, "logprob": -1}]}
WRONG_CHOICES: list[tuple[dict[str, Any], str]] = [
    ({"index": 1}, "index"),
    ({"token_ids": [10**6]}, "token_ids"),
    ({"token_ids": [-1]}, "token_ids"),
    ({"token_ids": [300] * (8 * MAX_MODEL_LEN + 1)}, ""),
    ({"finish_reason": None}, "finish_reason"),
    ({"finish_reason": "tool_calls"}, "finish_reason"),
    ({"logprobs": {"content": RIGHT_LOGPROBS["content"][:1]}}, "logprobs"),
    ({"logprobs": {"content": RIGHT_LOGPROBS["content"][::-1]}}, "logprobs"),
    ({"logprobs": {"content": [{"token_id": 300, "logprob": "x"}]}}, "logprobs"),
]


@pytest.mark.parametrize(("change", "field"), WRONG_CHOICES)
def test_wrong_answers_name_the_field(http: httpx.Client, change: dict[str, Any], field: str) -> None:
    given = {"choices": [{**CHOICE, **change}]}
    for path, body, name in (
        ("/v1/chat/completions/derender", {"generate_response": given}, "generate_response"),
        ("/v1/completions/derender", {"generate_responses": [given]}, "generate_responses[0]"),
    ):
        response = http.post(path, json=body)
        assert response.status_code == 400, response.text
        wanted = f"{name}.choices[0].{field}" if field else f"{name}.choices"
        assert response.json()["error"]["param"].startswith(wanted)


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/v1/chat/completions/derender", {"generate_response": {"choices": []}}, "generate_response.choices"),
        ("/v1/chat/completions/derender", {"generate_response": {"choices": [CHOICE]}, "stream": True}, "stream"),
        ("/v1/chat/completions/derender",
         {"generate_response": {"choices": [CHOICE]}, "chat_request": {**CHAT, "logprobs": True}},
         "generate_response.choices[0].logprobs"),
        ("/v1/chat/completions/derender",
         {"generate_response": {"choices": [CHOICE]}, "chat_request": {"messages": []}}, None),
        ("/v1/chat/completions/derender",
         {"generate_response": {"choices": [CHOICE]}, "chat_request": {**CHAT, "prompt_logprobs": 0}},
         "chat_request.prompt_logprobs"),
        ("/v1/completions/derender",
         {"generate_responses": [{"choices": [CHOICE]}], "completion_request": {"prompt": "a", "prompt_logprobs": 0}},
         "completion_request.prompt_logprobs"),
        ("/v1/completions/derender",
         {"generate_responses": [{"choices": [CHOICE, {**CHOICE, "index": 1}]}], "completion_request": {"prompt": "a"}},
         "generate_responses[0].choices"),
        ("/v1/completions/derender", {"generate_responses": []}, "generate_responses"),
        ("/v1/completions/derender",
         {"generate_responses": [{"choices": [CHOICE]}], "completion_request": {"prompt": ["a", "b"]}},
         "generate_responses"),
        ("/v1/completions/derender",
         {"generate_responses": [{"choices": [CHOICE]}], "completion_request": {"prompt": "a", "echo": True}},
         "completion_request.echo"),
        ("/v1/completions/derender", {"generate_responses": [{"choices": [CHOICE]}], "prompt_tokens": [1, 2]},
         "prompt_tokens"),
        ("/v1/chat/completions/render", {**CHAT, "use_beam_search": True}, "use_beam_search"),
        ("/v1/completions/render", {"prompt": "a", "echo": True}, "echo"),
        ("/v1/completions/render", {"prompt": "a", "prompt_embeds": "AAAA"}, "prompt_embeds"),
    ],
)  # fmt: skip
def test_what_cannot_be_told_is_refused(http: httpx.Client, path: str, body: dict[str, Any], field: str | None) -> None:
    response = http.post(path, json=body)
    assert response.status_code == 400, response.text
    if field is not None:
        assert response.json()["error"]["param"] == field
