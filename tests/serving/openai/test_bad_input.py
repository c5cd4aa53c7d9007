"""Bad input is refused with the right status and field; a stream alongside it does not notice."""

import json
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from tests.serving.openai.conftest import MAX_BODY, MAX_MODEL_LEN, MAX_SEQUENCES
from tests.serving.server_process import ServerProcess

MESSAGES = [{"role": "user", "content": "hello"}]


@pytest.fixture(scope="module", autouse=True)
def stream_beside(client: OpenAI) -> Iterator[None]:
    """A request that streams, again and again, while the tests of this module run; its text never changes."""
    texts, ended = [], threading.Event()

    def read() -> None:
        while not ended.is_set():
            stream = client.completions.create(
                model="demo", prompt="Once upon a time", temperature=0, max_tokens=100, stream=True
            )
            texts.append("".join(chunk.choices[0].text for chunk in stream))

    reader = threading.Thread(target=read)
    reader.start()
    yield
    ended.set()
    reader.join()
    assert texts
    assert len(set(texts)) == 1


def error_of(response: httpx.Response, status: int = 400) -> dict[str, Any]:
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    body = response.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    assert error["type"] == ("invalid_request_error" if status < 500 else "server_error")
    return error


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": -1}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"min_p": 2}, "min_p"),
        ({"n": 0}, "n"),
        ({"n": 10**9}, "n"),
        ({"n": 10**30}, "n"),
        ({"n": MAX_SEQUENCES + 1}, "n"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"seed": 2**64}, "seed"),
        ({"stop": ""}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"logit_bias": {"x": 1}}, "logit_bias"),
        ({"logit_bias": {"99999": 1}}, "logit_bias"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"bad_words": [""]}, "bad_words"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"priority": 2**64}, "priority"),
        ({"request_id": "two\nlines"}, "request_id"),
        ({"cache_salt": ""}, "cache_salt"),
        ({"guided_jsn": {}}, "guided_jsn"),
        ({"guided_json": {"$ref": "https://example.com/schema.json"}}, "guided_json"),
    ],
)  # fmt: skip
def test_fields_of_both(http: httpx.Client, fields: Any, param: str, stream: bool) -> None:
    chat = http.post("/v1/chat/completions", json={"messages": MESSAGES, "stream": stream, **fields})
    completion = http.post("/v1/completions", json={"prompt": "hello", "stream": stream, **fields})
    assert error_of(chat)["param"] == error_of(completion)["param"] == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "sound"}]}]}, "messages[0].content[0].type"),
        ({"messages": [{"role": "user", "content": "x " * MAX_MODEL_LEN}]}, "messages"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10**12}, "max_tokens"),
        ({"max_completion_tokens": 10**12}, "max_completion_tokens"),
        ({"max_completion_tokens": -1}, "max_completion_tokens"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"logprobs": 2}, "logprobs"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"prompt_logprobs": -2}, "prompt_logprobs"),
        ({"stream": True, "prompt_logprobs": 1}, "prompt_logprobs"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"chat_template": "{{ messages }}"}, "chat_template"),
        ({"chat_template_kwargs": {"chat_template": "x"}}, "chat_template_kwargs"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [{"type": "function"}], "tool_choice": "none"}, "tools[0].function"),
        ({"add_generation_prompt": True, "continue_final_message": True}, "continue_final_message"),
        ({"function_call": {"name": "f"}}, "function_call.name"),
    ],
)
def test_fields_of_chats(http: httpx.Client, fields: Any, param: str) -> None:
    assert error_of(http.post("/v1/chat/completions", json={"messages": MESSAGES, **fields}))["param"] == param


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [[]]}, "prompt"),
        ({"prompt": ["x", ""]}, "prompt"),
        ({"prompt": ["x", 1]}, "prompt"),
        ({"prompt": [1, [1]]}, "prompt"),
        ({"prompt": ["x"] * 1025}, "prompt"),
        ({"prompt": ["x"] * (MAX_SEQUENCES + 1)}, "n"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": [10**30]}, "prompt"),
        ({"prompt": "x " * MAX_MODEL_LEN}, "prompt"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 10**12}, "max_tokens"),
        ({"max_tokens": MAX_MODEL_LEN + 1}, "max_tokens"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": -1}, "logprobs"),
        ({"best_of": 1, "n": 2}, "best_of"),
        ({"best_of": 3, "stream": True}, "best_of"),
        ({"suffix": "the end"}, "suffix"),
        ({"prompts": ["x"]}, "prompts"),
    ],
)
def test_fields_of_completions(http: httpx.Client, fields: Any, param: str) -> None:
    assert error_of(http.post("/v1/completions", json={"prompt": "hello", **fields}))["param"] == param


def test_too_many_tokens_are_said_as_openai_does(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match=f"maximum context length is {MAX_MODEL_LEN} tokens") as caught:
        client.completions.create(model="demo", prompt="hello", max_tokens=MAX_MODEL_LEN + 1)
    assert caught.value.code == "context_length_exceeded"
    for prompt in ("hello " * MAX_MODEL_LEN, ["hello", "hello " * MAX_MODEL_LEN]):
        with pytest.raises(openai.BadRequestError, match=f"at most {MAX_MODEL_LEN - 1}") as caught:
            client.completions.create(model="demo", prompt=prompt)
        assert caught.value.code == "context_length_exceeded"


LONG_ASK = [{"role": "user", "content": "hello " * 200}]


@pytest.mark.parametrize(
    ("path", "body", "limit"),
    [
        ("/v1/completions", {"prompt": "hello " * 200, "ignore_eos": True}, "max_tokens"),
        ("/v1/chat/completions", {"messages": LONG_ASK, "ignore_eos": True}, "max_tokens"),
        ("/v1/chat/completions", {"messages": LONG_ASK, "ignore_eos": True}, "max_completion_tokens"),
        ("/v1/responses", {"input": "hello " * 200, "ignore_eos": True}, "max_output_tokens"),
        ("/v1/messages", {"messages": LONG_ASK, "ignore_eos": True}, "max_tokens"),
    ],
)
def test_more_tokens_than_there_is_room_for_end_with_the_context(
    http: httpx.Client, path: str, body: dict[str, Any], limit: str
) -> None:
    answer = http.post(path, json={**body, limit: MAX_MODEL_LEN})
    assert answer.status_code == 200, answer.text
    made = answer.json()
    usage = made["usage"]
    # Anthropic counts what was cached alongside the rest.
    parts = ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens", "cache_read_input_tokens")
    assert sum(usage.get(part) or 0 for part in parts) == MAX_MODEL_LEN
    reasons = {
        "/v1/responses": ("incomplete_details", {"reason": "max_output_tokens"}),
        "/v1/messages": ("stop_reason", "max_tokens"),
    }
    choice = made["choices"][0] if "choices" in made else made
    name, expected = reasons.get(path, ("finish_reason", "length"))
    assert choice[name] == expected
    refused = http.post(path, json={**body, limit: MAX_MODEL_LEN + 1})
    assert refused.status_code == 400
    assert f"{limit}={MAX_MODEL_LEN + 1}: this model's maximum context length is {MAX_MODEL_LEN}" in refused.text


@pytest.mark.parametrize("depth", [50, 200, 500, 800, 900, 950, 970, 980, 990, 1000, 10_000])
@pytest.mark.parametrize("field", ['"tools": [{"function": {"name": "f", "parameters": ', '"chat_template_kwargs": '])
def test_deep_nesting(http: httpx.Client, depth: int, field: str) -> None:
    deep = '{"a":' * depth + "1" + "}" * depth + "}}]" * field.startswith('"tools')
    body = (
        '{"messages": [{"role": "user", "content": "x"}], "tool_choice": "none", "max_tokens": 1,' + field + deep + "}"
    )
    response = http.post("/v1/chat/completions", content=body, headers={"Content-Type": "application/json"})
    assert response.status_code in (200, 400), response.text


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"])
@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        (b"", "application/json", 400),
        (b"not json", "application/json", 400),
        (b'"text"', "application/json", 400),
        (b'{"model": NaN}', "application/json; charset=utf-8", 400),
        (b'{"model": "\\ud800"}', "application/json", 400),
        (b"\xff\xfe", "application/json", 400),
        (b"[" * 500_000, "application/json", 400),
        (b'{"prompt": "hello"}', "text/plain", 415),
        (b"prompt=hello", "application/x-www-form-urlencoded", 415),
    ],
)
def test_bodies(http: httpx.Client, path: str, body: bytes, content_type: str, status: int) -> None:
    error_of(http.post(path, content=body, headers={"Content-Type": content_type}), status)


def test_a_body_of_50_megabytes(http: httpx.Client) -> None:
    body = b'{"prompt": "' + b"x" * 50_000_000 + b'"}'
    headers = {"Content-Type": "application/json"}
    assert str(MAX_BODY) in error_of(http.post("/v1/completions", content=body, headers=headers), 413)["message"]


def test_a_body_of_unknown_length(http: httpx.Client) -> None:
    pieces = (b"x" * 2**16 for _ in range(20))
    headers = {"Content-Type": "application/json"}
    error_of(http.post("/v1/completions", content=pieces, headers=headers), 413)
    small = iter([b'{"prompt": "hello", ', b'"max_tokens": 1}'])
    assert http.post("/v1/completions", content=small, headers=headers).status_code == 200


@pytest.mark.parametrize(
    "keys",
    [None, "", "Bearer", "Bearer wrong", "Basic a key to the server", "Bearer a key to the serve", "Bearer \xff"],
)
@pytest.mark.parametrize("path", ["/v1/models", "/version", "/load", "/openapi.json", "/unknown"])
def test_wrong_keys(server: ServerProcess, path: str, keys: str | None) -> None:
    headers = {} if keys is None else {b"Authorization": keys.encode("latin-1")}
    error = error_of(httpx.get(server.url + path, headers=headers), 401)
    assert error["code"] == "invalid_api_key"


def test_the_clients_own_errors(client: OpenAI) -> None:
    stranger = client.with_options(api_key="wrong")
    with pytest.raises(openai.AuthenticationError):
        stranger.models.list()
    with pytest.raises(openai.NotFoundError, match="`demmo` does not exist; did you mean 'demo'") as caught:
        client.chat.completions.create(model="demmo", messages=[{"role": "user", "content": "hello"}])
    assert (caught.value.code, caught.value.param) == ("model_not_found", "model")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("org/other")


def test_unknown_paths_and_methods(http: httpx.Client) -> None:
    assert error_of(http.get("/v1/unknown"), 404)["code"] == "unknown_url"
    assert error_of(http.post("/v1/models/", json={}), 405)["code"] == "method_not_supported"
    response = http.get("/v1/chat/completions")
    assert error_of(response, 405)["code"] == "method_not_supported"
    assert response.headers["allow"] == "POST"


def test_a_full_queue_says_when_to_try_again(http: httpx.Client) -> None:
    # Leaves room for the stream beside, and for no more.
    many = {"prompt": "hello", "n": MAX_SEQUENCES - 2, "max_tokens": 200, "ignore_eos": True, "stream": True}
    with http.stream("POST", "/v1/completions", json=many) as first:
        assert first.status_code == 200
        lines = first.iter_lines()
        assert next(lines).startswith("data: ")
        response = http.post("/v1/completions", json={"prompt": "hello", "n": 3, "seed": 1})
        assert error_of(response, 503)["code"] == "queue_full"
        assert int(response.headers["retry-after"]) >= 1


def test_errors_without_a_body(http: httpx.Client) -> None:
    response = http.post("/v1/completions")
    assert json.loads(response.text)["error"]["code"] == "invalid_json"


@pytest.mark.parametrize("path", ["/v1/audio/transcriptions", "/v1/audio/translations"])
def test_models_that_do_not_hear_say_so(http: httpx.Client, path: str) -> None:
    error = error_of(http.post(path, files={"file": ("a.wav", b"RIFF")}, data={"model": "demo"}))
    assert error["code"] == "unsupported_for_model"
    assert "does not hear" in error["message"]
