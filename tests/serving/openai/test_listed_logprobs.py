"""Log-probabilities of tokens that the request lists, through both interfaces."""

from typing import Any

import httpx
import pytest
from openai import OpenAI

from jaxllm.requests.sampling_limits import MAX_LOGPROB_TOKEN_IDS
from tests.serving.openai.conftest import MAX_SEQUENCES

PROMPT = "Once upon a time"
CHAT = [{"role": "user", "content": "hello"}]
BY_ID = {"return_tokens_as_token_ids": True}


def number(token: str) -> int:
    return int(token.removeprefix("token_id:"))


def test_completions(client: OpenAI) -> None:
    """The likeliest tokens have the same log-probabilities when they are listed, in the order of the list."""
    fields: dict[str, Any] = {"model": "demo", "prompt": PROMPT, "max_tokens": 3, "temperature": 0}
    (likely,) = client.completions.create(**fields, logprobs=20, extra_body=BY_ID).choices
    assert likely.logprobs
    assert likely.logprobs.top_logprobs
    wanted = likely.logprobs.top_logprobs[0]
    listed = [number(token) for token in reversed(wanted)][:10]
    extra = {**BY_ID, "logprob_token_ids": listed, "presence_penalty": 1.0}
    (choice,) = client.completions.create(**fields, logprobs=0, extra_body=extra).choices
    given = choice.logprobs
    assert given
    assert given.tokens
    assert given.token_logprobs
    assert given.top_logprobs
    assert given.tokens[0] == likely.logprobs.tokens[0]
    found = given.top_logprobs[0]
    assert [number(token) for token in found] == [number(given.tokens[0]), *listed]
    assert found == pytest.approx({token: wanted[token] for token in found}, abs=1e-4)
    for token, logprob, top in zip(given.tokens, given.token_logprobs, given.top_logprobs, strict=True):
        assert set(map(number, top)) == {*listed, number(token)}
        assert top[token] == logprob


def test_echoed_prompts_keep_their_likeliest_tokens(http: httpx.Client) -> None:
    body = {"prompt": PROMPT, "max_tokens": 2, "logprobs": 3, "echo": True, "logprob_token_ids": [5, 6], **BY_ID}
    (choice,) = http.post("/v1/completions", json=body).json()["choices"]
    *prompt, first, second = choice["logprobs"]["top_logprobs"]
    assert all(3 <= len(each) <= 4 for each in prompt[1:])
    assert all({"token_id:5", "token_id:6"} <= each.keys() and len(each) <= 3 for each in (first, second))


def test_chat(client: OpenAI) -> None:
    fields: dict[str, Any] = {"model": "demo", "messages": CHAT, "max_tokens": 4, "temperature": 0, "logprobs": True}
    (likely,) = client.chat.completions.create(**fields, top_logprobs=20, extra_body=BY_ID).choices
    assert likely.logprobs
    assert likely.logprobs.content
    wanted = {each.token: each.logprob for each in likely.logprobs.content[0].top_logprobs}
    listed = [number(token) for token in reversed(wanted)]
    # How many of the likeliest ones are wanted does not matter then.
    extra = {**BY_ID, "logprob_token_ids": listed}
    (choice,) = client.chat.completions.create(**fields, top_logprobs=2, extra_body=extra).choices
    assert choice.message.content == likely.message.content
    assert choice.logprobs
    assert choice.logprobs.content
    found = {each.token: each.logprob for each in choice.logprobs.content[0].top_logprobs}
    assert found == pytest.approx(wanted, abs=1e-4)
    chosen = choice.logprobs.content[0].token
    assert [number(token) for token in found] == [number(chosen), *(i for i in listed if i != number(chosen))]
    for each in choice.logprobs.content:
        assert {top.token for top in each.top_logprobs} == {each.token, *(f"token_id:{i}" for i in listed)}


def test_a_stream_has_what_the_whole_has(client: OpenAI) -> None:
    extra = {"logprob_token_ids": [7, 8, 300]}
    fields: dict[str, Any] = {
        "model": "demo", "messages": CHAT, "max_tokens": 6, "seed": 3, "logprobs": True, "extra_body": extra
    }  # fmt: skip
    (choice,) = client.chat.completions.create(**fields).choices
    assert choice.logprobs
    assert choice.logprobs.content
    streamed = [
        each
        for chunk in client.chat.completions.create(**fields, stream=True)
        for part in chunk.choices
        for each in (part.logprobs.content if part.logprobs else None) or ()
    ]
    assert [each.token for each in streamed] == [each.token for each in choice.logprobs.content]
    for ours, theirs in zip(streamed, choice.logprobs.content, strict=True):
        assert [top.token for top in ours.top_logprobs] == [top.token for top in theirs.top_logprobs]
        assert [top.logprob for top in ours.top_logprobs] == pytest.approx(
            [top.logprob for top in theirs.top_logprobs], abs=1e-4
        )


def test_with_a_grammar_and_several_choices(client: OpenAI) -> None:
    """The logprobs are those of the model, whatever the grammar allows."""
    extra = {"logprob_token_ids": [7, 8, 300], "structured_outputs": {"choice": ["red", "green"]}, **BY_ID}
    answer = client.chat.completions.create(
        model="demo", messages=CHAT, n=3, seed=1, logprobs=True, extra_body=extra  # type: ignore[arg-type]
    )  # fmt: skip
    assert {choice.message.content for choice in answer.choices} <= {"red", "green"}
    firsts = [choice.logprobs.content[0] for choice in answer.choices if choice.logprobs and choice.logprobs.content]
    assert len(firsts) == 3
    found = [[top.logprob for top in first.top_logprobs if top.token != first.token] for first in firsts]
    for other in found[1:]:
        assert other == pytest.approx(found[0], abs=1e-4)
    assert all(-100 < logprob < 0 for logprob in found[0])


def test_responses(client: OpenAI) -> None:
    answer = client.responses.create(
        model="demo", input="hello", max_output_tokens=3, include=["message.output_text.logprobs"],
        extra_body={"logprob_token_ids": [7, 8], **BY_ID},
    )  # fmt: skip
    message: Any = answer.output[0]
    (text,) = message.content
    for each in text.logprobs:
        assert {top.token for top in each.top_logprobs} == {each.token, "token_id:7", "token_id:8"}


COMPLETIONS = ("/v1/completions", {"prompt": "x", "max_tokens": 2, "logprobs": 0})
CHATS = ("/v1/chat/completions", {"messages": CHAT, "max_tokens": 2, "logprobs": True})
RESPONSES = ("/v1/responses", {"input": "x", "include": ["message.output_text.logprobs"]})


@pytest.mark.parametrize("place", [COMPLETIONS, CHATS, RESPONSES], ids=lambda place: place[0])
@pytest.mark.parametrize(
    "listed",
    [[], list(range(MAX_LOGPROB_TOKEN_IDS + 1)), [10**6], [5, 2**31], [-1], [2**70], ["5"], [1.5], [True], 5, "5", {}],
    ids=lambda listed: repr(listed)[:20],
)
def test_wrong_lists(http: httpx.Client, place: tuple[str, dict[str, Any]], listed: Any) -> None:
    path, body = place
    answer = http.post(path, json={**body, "logprob_token_ids": listed})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"].startswith("logprob_token_ids")


@pytest.mark.parametrize(
    ("place", "fields"),
    [
        (COMPLETIONS, {"logprobs": None}),
        (COMPLETIONS, {"echo": True, "max_tokens": 0}),
        (COMPLETIONS, {"use_beam_search": True, "n": 2}),
        (CHATS, {"logprobs": False}),
        (CHATS, {"use_beam_search": True, "n": 2}),
        (RESPONSES, {"include": []}),
    ],
)
def test_what_it_does_not_go_with(http: httpx.Client, place: tuple[str, dict[str, Any]], fields: Any) -> None:
    path, body = place
    answer = http.post(path, json={**body, "logprob_token_ids": [5], **fields})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == "logprob_token_ids"


def test_the_longest_list_and_null(http: httpx.Client) -> None:
    path, body = COMPLETIONS
    listed = list(range(10, 10 + MAX_LOGPROB_TOKEN_IDS))
    answer = http.post(path, json={**body, "n": 8, "logprob_token_ids": listed, **BY_ID})
    assert MAX_SEQUENCES > 8
    assert answer.status_code == 200, answer.text
    for choice in answer.json()["choices"]:
        for top in choice["logprobs"]["top_logprobs"]:
            assert {f"token_id:{i}" for i in listed} <= top.keys()
    assert http.post(path, json={**body, "logprob_token_ids": None}).status_code == 200
