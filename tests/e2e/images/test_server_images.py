"""Images over HTTP: the clients of others send them, and what is wrong with one is told to its sender alone."""

import re
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import anthropic
import httpx
import openai
import pytest
from langchain_core.messages import AIMessage, HumanMessage
from langchain_openai import ChatOpenAI
from pydantic import SecretStr

from tests.e2e.images.conftest import Reference
from tests.e2e.images.pictures import data_url, message, picture
from tests.serving.server_process import ServerProcess


def test_the_openai_client(client: openai.OpenAI, reference: Reference) -> None:
    image = picture(1)
    options: Any = {"model": "seeing", "messages": message(data_url(image), "What is this?"), "temperature": 0}
    options |= {"max_tokens": 8, "extra_body": {"ignore_eos": True, "return_token_ids": True}}
    whole = client.chat.completions.create(**options)
    text = reference.rendered("What is this?")
    prompt, answer = reference.answer(text, [image])
    assert whole.usage is not None
    assert whole.usage.prompt_tokens == len(prompt)
    assert whole.choices[0].model_extra["token_ids"] == answer
    streamed = client.chat.completions.create(**options, stream=True)
    pieces = [chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices]
    assert "".join(pieces) == whole.choices[0].message.content


@pytest.mark.parametrize("kind", ["jpeg", "webp", "gif", "bmp"])
def test_kinds_of_files(client: openai.OpenAI, kind: str) -> None:
    messages = message(data_url(picture(2), kind), "What is this?")
    answer = client.chat.completions.create(model="seeing", messages=messages, max_tokens=2)
    assert answer.choices[0].finish_reason is not None


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("data:image/png;base64,AAAA", "the data is no image"),
        ("data:image/png;base64,!", "not valid base64"),
        ("data:image/png,abc", "must have the form"),
        ("http://127.0.0.1:1/cat.png", "not public"),
        ("http://169.254.169.254/latest/meta-data", "not public"),
        ("file:///etc/passwd", "file:// URLs are not allowed"),
    ],
)
def test_wrong_images(server: ServerProcess, url: str, reason: str) -> None:
    body = {"model": "seeing", "messages": message("a", url), "max_tokens": 1}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == "messages[0].content[1]"
    assert reason in error["message"]


def test_too_many_images(server: ServerProcess) -> None:
    body = {"model": "seeing", "messages": message(*[data_url(picture(i, 8, 8)) for i in range(5)]), "max_tokens": 1}
    answer = httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)
    assert answer.status_code == 400
    assert "at most 4" in answer.json()["error"]["message"]


def test_a_request_for_another_server_has_no_images(server: ServerProcess) -> None:
    body = {"model": "seeing", "messages": message(data_url(picture(1)), "What is this?")}
    answer = httpx.post(f"{server.url}/v1/chat/completions/render", json=body, timeout=60)
    assert answer.status_code == 400, answer.text
    assert "image" in answer.json()["error"]["message"]


def test_responses(client: openai.OpenAI, reference: Reference) -> None:
    image = picture(1)
    content: Any = [
        {"type": "input_image", "image_url": data_url(image), "detail": "auto"},
        {"type": "input_text", "text": "What is this?"},
    ]
    asked: Any = {"model": "seeing", "input": [{"role": "user", "content": content}], "temperature": 0}
    found = client.responses.create(**asked, max_output_tokens=8, extra_body={"ignore_eos": True})
    prompt, answer = reference.answer(reference.rendered("What is this?"), [image])
    assert found.usage is not None
    assert (found.usage.input_tokens, found.usage.output_tokens) == (len(prompt), 8)
    assert found.output_text == reference.processor.tokenizer.decode(answer, skip_special_tokens=True)
    assert client.responses.input_tokens.count(model="seeing", input=asked["input"]).input_tokens == len(prompt)
    # The image is a part of the conversation that is gone on with.
    more = client.responses.create(
        model="seeing", previous_response_id=found.id, input="And this?", max_output_tokens=1, temperature=0
    )
    assert more.usage is not None
    assert more.usage.input_tokens > len(prompt) + 8


def test_the_anthropic_client(server: ServerProcess, reference: Reference) -> None:
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        image = picture(1)
        source = {"type": "base64", "media_type": "image/png", "data": data_url(image).partition(",")[2]}
        content: Any = [{"type": "image", "source": source}, {"type": "text", "text": "What is this?"}]
        messages: Any = [{"role": "user", "content": content}]
        found = client.messages.create(
            model="seeing", messages=messages, max_tokens=8, extra_body={"temperature": 0, "ignore_eos": True}
        )
        prompt, answer = reference.answer(reference.rendered("What is this?"), [image])
        assert found.usage.input_tokens + (found.usage.cache_read_input_tokens or 0) == len(prompt)
        assert found.content[0].type == "text"
        assert found.content[0].text == reference.processor.tokenizer.decode(answer, skip_special_tokens=True)
        assert client.messages.count_tokens(model="seeing", messages=messages).input_tokens == len(prompt)
        result = {"type": "tool_result", "tool_use_id": "1", "content": content}
        use = {"type": "tool_use", "id": "1", "name": "look", "input": {}}
        conversation: Any = [{"role": "assistant", "content": [use]}, {"role": "user", "content": [result]}]
        counted = client.messages.count_tokens(model="seeing", messages=[*messages, *conversation]).input_tokens
        assert counted > 2 * reference.num_rows(image)


def test_the_engine_is_killed_while_it_looks(server: ServerProcess, client: openai.OpenAI) -> None:
    """What was seen, is looked at, or waits to be: every answer about an image is the one it has undisturbed."""
    killed = threading.Lock()

    def look(seed: int, killing: bool) -> tuple[str, list[int]]:
        chunks: Any = client.chat.completions.create(
            model="seeing", messages=message(data_url(picture(seed)), "What is this?"), max_tokens=60, temperature=0.7,
            seed=seed, stream=True, extra_body={"ignore_eos": True, "return_token_ids": True},
        )  # fmt: skip
        text, ids = "", list[int]()
        for chunk in chunks:
            for choice in chunk.choices:
                text += choice.delta.content or ""
                ids += choice.model_extra.get("token_ids") or []
            if killing and ids and killed.acquire(blocking=False):
                server.engine().kill()
        return text, ids

    seeds = range(50, 56)
    alone = [look(seed, killing=False) for seed in seeds]
    assert all(len(ids) == 60 for _, ids in alone)
    assert len({text for text, _ in alone}) == len(alone)
    with ThreadPoolExecutor(len(seeds)) as threads:
        asked = [threads.submit(look, seed, killing=True) for seed in seeds]
        assert [each.result() for each in asked] == alone
    assert killed.locked()


def test_langchain(server: ServerProcess) -> None:
    model = ChatOpenAI(base_url=f"{server.url}/v1", api_key=SecretStr("none"), model="seeing", max_retries=0)
    image = {"type": "image", "base64": data_url(picture(1)).partition(",")[2], "mime_type": "image/png"}
    asked = HumanMessage(content=[{"type": "text", "text": "What is this?"}, image])
    answer = model.invoke([asked], max_tokens=4)
    assert isinstance(answer, AIMessage)
    assert answer.usage_metadata is not None
    assert answer.usage_metadata["input_tokens"] > 20


def test_tokens_of_a_conversation(server: ServerProcess, reference: Reference) -> None:
    image = picture(1)
    body = {"model": "seeing", "messages": message(data_url(image), "What is this?")}
    answer = httpx.post(f"{server.url}/tokenize", json=body, timeout=60)
    assert answer.status_code == 200, answer.text
    assert answer.json()["tokens"] == reference.answer(reference.rendered("What is this?"), [image])[0]


def test_an_image_by_the_name_it_was_given(server: ServerProcess) -> None:
    def ask(part: Any) -> httpx.Response:
        body = {"model": "seeing", "messages": [{"role": "user", "content": [part]}], "max_tokens": 4, "temperature": 0}
        return httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60)

    url = {"url": data_url(picture(7))}
    first = ask({"type": "image_url", "image_url": url, "uuid": "cat"})
    again = ask({"type": "image_url", "image_url": None, "uuid": "cat"})
    for answer in (first, again):
        assert answer.status_code == 200, answer.text
    assert again.json()["choices"][0]["message"] == first.json()["choices"][0]["message"]
    unknown = ask({"type": "image_url", "uuid": "dog"})
    assert unknown.status_code == 400
    assert "send it again" in unknown.json()["error"]["message"]
    assert unknown.json()["error"]["param"] == "messages[0].content[0]"


def test_how_a_request_wants_its_images_processed(server: ServerProcess) -> None:
    def ask(kwargs: Any) -> httpx.Response:
        body = {"model": "seeing", "messages": message(data_url(picture(1))), "mm_processor_kwargs": kwargs}
        return httpx.post(f"{server.url}/v1/chat/completions", json={**body, "max_tokens": 1}, timeout=60)

    whole, split = ask({"do_image_splitting": False}), ask({"do_image_splitting": True})
    assert whole.json()["usage"]["prompt_tokens"] < split.json()["usage"]["prompt_tokens"]
    wrong = ask({"image_mean": [0, 0, 0]})
    assert wrong.status_code == 400
    assert wrong.json()["error"]["param"] == "mm_processor_kwargs"
    assert "do_image_splitting" in wrong.json()["error"]["message"]


@pytest.mark.parametrize(
    ("route", "body", "param"),
    [
        (
            "/v1/responses",
            {"input": [{"role": "user", "content": "a"}, {"role": "user", "content": [
             {"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "http://127.0.0.1:1/a"}]}]},
            "input[1].content[1]",
        ),
        (
            "/v1/responses",
            {"input": [{"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"},
             {"type": "function_call_output", "call_id": "1",
              "output": [{"type": "input_image", "image_url": "http://127.0.0.1:1/a"}]}]},
            "input[1].output[0]",
        ),
        (
            "/v1/messages",
            {"max_tokens": 1, "messages": [{"role": "user", "content": [
             {"type": "tool_result", "tool_use_id": "1", "content": "a"},
             {"type": "image", "source": {"type": "url", "url": "http://127.0.0.1:1/a"}}]}]},
            "messages[0].content[1]",
        ),
        (
            "/v1/messages/count_tokens",
            {"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "1", "content": [
             {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}]}]}]},
            "messages[0].content[0].content[0]",
        ),
    ],
)  # fmt: skip
def test_where_a_wrong_image_stands(server: ServerProcess, route: str, body: Any, param: str) -> None:
    answer = httpx.post(f"{server.url}{route}", json={"model": "seeing", **body}, timeout=60)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"].startswith(f"{param}: ")


def test_metrics_of_images(server: ServerProcess) -> None:
    """The second time, an image is neither processed nor encoded."""

    def counts() -> list[float]:
        text = httpx.get(f"{server.url}/metrics", timeout=60).text
        names = [f"{cache}_cache_{what}_total" for cache in ("mm", "encoder") for what in ("queries", "hits")]
        found = (re.search(rf"^jaxllm:{name}{{.*}} (.*)$", text, re.MULTILINE) for name in names)
        return [float(each[1]) for each in found if each is not None]

    body = {"model": "seeing", "messages": message(data_url(picture(31))), "max_tokens": 1}
    seen = [counts()]
    for _ in range(2):
        assert httpx.post(f"{server.url}/v1/chat/completions", json=body, timeout=60).status_code == 200
        # The engine tells its counts with its next message.
        deadline = time.monotonic() + 60
        while (now := counts())[2] == seen[-1][2] and time.monotonic() < deadline:
            time.sleep(0.05)
        seen.append(now)
    grown = [[now - before for before, now in zip(*pair, strict=True)] for pair in pairwise(seen)]
    assert grown == [[1, 0, 1, 0], [1, 1, 1, 1]]


def test_a_large_image_in_the_body(client: openai.OpenAI) -> None:
    """A photograph takes more bytes than a prompt."""
    url = data_url(picture(41, 1500, 1500))
    assert len(url) > 8 << 20
    answer = client.chat.completions.create(model="seeing", messages=message(url, "What is this?"), max_tokens=1)
    assert answer.choices[0].finish_reason is not None
