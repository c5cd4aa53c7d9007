"""Completions through OpenAI's client."""

import json
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI, OpenAI

PROMPT = "Once upon a time"


def token_ids_of(http: httpx.Client, prompt: str) -> list[int]:
    found: list[int] = http.post("/tokenize", json={"prompt": prompt}).json()["tokens"]
    return found


def test_a_completion(client: OpenAI) -> None:
    answer = client.completions.create(model="demo", prompt=PROMPT, temperature=0)
    (choice,) = answer.choices
    assert answer.id.startswith("cmpl-")
    assert answer.object == "text_completion"
    assert choice.text
    assert choice.logprobs is None
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 16, "OpenAI's default"


def test_text_and_token_ids_are_the_same_prompt(client: OpenAI, http: httpx.Client) -> None:
    prompts: list[Any] = [PROMPT, "2 + 3 ="]
    ids = [token_ids_of(http, prompt) for prompt in prompts]

    def texts(prompt: Any) -> list[str]:
        answer = client.completions.create(model="demo", prompt=prompt, temperature=0, max_tokens=6)
        assert [choice.index for choice in answer.choices] == list(range(len(answer.choices)))
        return [choice.text for choice in answer.choices]

    both = texts(prompts)
    assert both == texts(ids)
    assert both[:1] == texts(PROMPT) == texts(ids[0]) == texts([PROMPT])


@pytest.mark.parametrize("settings", [{}, {"echo": True}, {"logprobs": 2}, {"echo": True, "logprobs": 2}])
def test_a_stream_is_the_completion_in_pieces(client: OpenAI, settings: Any) -> None:
    request: Any = {
        "model": "demo", "prompt": [PROMPT, "The \N{SNOWMAN} is"], "max_tokens": 8, "n": 2, "seed": 3, **settings,
    }  # fmt: skip
    whole = client.completions.create(**request)
    texts: dict[int, str] = {}
    offsets: dict[int, list[int]] = {}
    tokens: dict[int, list[str]] = {}
    reasons: dict[int, str] = {}
    for chunk in client.completions.create(**request, stream=True):
        (choice,) = chunk.choices
        texts[choice.index] = texts.get(choice.index, "") + choice.text
        if choice.logprobs is not None:
            offsets.setdefault(choice.index, []).extend(choice.logprobs.text_offset or ())
            tokens.setdefault(choice.index, []).extend(choice.logprobs.tokens or ())
        if choice.finish_reason:
            reasons[choice.index] = choice.finish_reason
    assert [texts[index] for index in range(4)] == [choice.text for choice in whole.choices]
    assert [reasons[index] for index in range(4)] == [choice.finish_reason for choice in whole.choices]
    for choice in whole.choices:
        if choice.logprobs is not None:
            assert choice.logprobs.text_offset == offsets[choice.index]
            assert choice.logprobs.tokens == tokens[choice.index]


def test_echo_with_logprobs(client: OpenAI, http: httpx.Client) -> None:
    answer = client.completions.create(model="demo", prompt=PROMPT, temperature=0, max_tokens=4, echo=True, logprobs=2)
    (choice,) = answer.choices
    assert choice.text.startswith(PROMPT)
    assert choice.logprobs is not None
    assert choice.logprobs.tokens is not None
    assert len(choice.logprobs.tokens) == len(token_ids_of(http, PROMPT)) + 4
    assert choice.logprobs.token_logprobs is not None
    assert choice.logprobs.token_logprobs[0] is None
    assert all(logprob <= 0 for logprob in choice.logprobs.token_logprobs[1:])
    assert choice.logprobs.text_offset is not None
    for token, offset in zip(choice.logprobs.tokens, choice.logprobs.text_offset, strict=True):
        assert choice.text.startswith(token, offset)
    for token, top in list(zip(choice.logprobs.tokens, choice.logprobs.top_logprobs or (), strict=True))[1:]:
        assert token in top
        assert 2 <= len(top) <= 3


def test_special_tokens_take_room_in_the_echo_only_where_they_are_shown(http: httpx.Client) -> None:
    text = "<|im_start|>user\nhello"
    shown: dict[str, Any] = {"prompt": text, "max_tokens": 0, "echo": True, "logprobs": 0}
    (choice,) = http.post("/v1/completions", json=shown).json()["choices"]
    assert choice["text"] == text
    assert choice["logprobs"]["text_offset"][:2] == [0, len("<|im_start|>")]
    as_ids = {**shown, "prompt": token_ids_of(http, text)}
    (choice,) = http.post("/v1/completions", json=as_ids).json()["choices"]
    assert choice["text"] == text
    assert choice["logprobs"]["text_offset"][:2] == [0, len("<|im_start|>")]
    hidden = {**shown, "truncate_prompt_tokens": len(as_ids["prompt"])}
    (choice,) = http.post("/v1/completions", json=hidden).json()["choices"]
    assert choice["text"] == "user\nhello"
    assert choice["logprobs"]["text_offset"][:2] == [0, 0]


def test_scoring_a_prompt_generates_nothing(client: OpenAI) -> None:
    answer = client.completions.create(model="demo", prompt=PROMPT, max_tokens=0, echo=True, logprobs=0)
    (choice,) = answer.choices
    assert choice.text == PROMPT
    assert choice.logprobs is not None
    assert choice.logprobs.tokens is not None
    assert "".join(choice.logprobs.tokens) == PROMPT
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 0
    streamed = client.completions.create(model="demo", prompt=PROMPT, max_tokens=0, echo=True, logprobs=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == PROMPT


def test_echo_of_token_ids_is_their_text(client: OpenAI, http: httpx.Client) -> None:
    ids = token_ids_of(http, PROMPT)
    answer = client.completions.create(model="demo", prompt=ids, max_tokens=1, echo=True)
    assert answer.choices[0].text.startswith(PROMPT)


def test_best_of(client: OpenAI) -> None:
    answer = client.completions.create(model="demo", prompt=PROMPT, n=2, best_of=4, seed=1, max_tokens=6, logprobs=0)
    assert [choice.index for choice in answer.choices] == [0, 1]
    sums = []
    for choice in answer.choices:
        assert choice.logprobs is not None
        sums.append(sum(choice.logprobs.token_logprobs or ()))
    assert sums == sorted(sums, reverse=True)


def test_prompt_and_output_token_ids(client: OpenAI, http: httpx.Client) -> None:
    answer = client.completions.create(
        model="demo",
        prompt=[PROMPT, "2 + 3 ="],
        max_tokens=3,
        extra_body={"return_token_ids": True, "prompt_logprobs": 0, "truncate_prompt_tokens": 3},
    )
    for prompt, choice in zip([PROMPT, "2 + 3 ="], answer.choices, strict=True):
        dump = choice.model_dump()
        assert dump["prompt_token_ids"] == token_ids_of(http, prompt)[-3:]
        assert 1 <= len(dump["token_ids"]) <= 3
        assert len(dump["prompt_logprobs"]) == 3


def test_which_end_of_a_prompt_is_lost(client: OpenAI, http: httpx.Client) -> None:
    tokens = token_ids_of(http, PROMPT)
    long = "the cat sat on the mat " * 20_000
    for side, prompt, kept in [
        ("left", PROMPT, tokens[-3:]),
        ("right", PROMPT, tokens[:3]),
        ("right", tokens, tokens[:3]),
        ("right", long, token_ids_of(http, long[:100])[:3]),
    ]:
        more = {"return_token_ids": True, "truncate_prompt_tokens": 3, "truncation_side": side}
        answer = client.completions.create(model="demo", prompt=prompt, max_tokens=1, extra_body=more)  # type: ignore[arg-type]
        assert answer.choices[0].model_dump()["prompt_token_ids"] == kept
    talk = {"messages": [{"role": "user", "content": PROMPT}]}
    whole = http.post("/tokenize", json=talk).json()["tokens"]
    more = {"max_tokens": 1, "return_token_ids": True, "truncate_prompt_tokens": 4, "truncation_side": "right"}
    assert http.post("/v1/chat/completions", json={**talk, **more}).json()["prompt_token_ids"] == whole[:4]


async def test_usage_of_several_prompts(async_client: AsyncOpenAI, http: httpx.Client) -> None:
    prompts = [PROMPT, "2 + 3 ="]
    stream = await async_client.completions.create(
        model="demo", prompt=prompts, max_tokens=3, stream=True, stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    *chunks, last = [chunk async for chunk in stream]
    assert {chunk.choices[0].index for chunk in chunks} == {0, 1}
    assert all(chunk.usage is None for chunk in chunks)
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.prompt_tokens == sum(len(token_ids_of(http, prompt)) for prompt in prompts)
    assert last.usage.completion_tokens == 6


def test_fields_that_are_null_where_nothing_was_asked_for(http: httpx.Client) -> None:
    """Those that vLLM's answers always have."""
    answer = http.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 2}).json()
    assert {name for name, value in answer.items() if value is None} == {"service_tier", "kv_transfer_params"}
    nulls = {"logprobs", "stop_reason", "token_ids", "prompt_token_ids", "prompt_logprobs"}
    assert {name for name, value in answer["choices"][0].items() if value is None} == nulls
    lines = http.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 9, "stream": True}).text.splitlines()
    chunks = [json.loads(line.removeprefix("data: ")) for line in lines if line.startswith("data: {")]
    for chunk in chunks:
        expected = nulls - {"prompt_logprobs"} | ({"finish_reason"} if chunk is not chunks[-1] else set())
        assert {name for name, value in chunk["choices"][0].items() if value is None} == expected
