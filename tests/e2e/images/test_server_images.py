"""Images over HTTP: the clients of others send them, and what is wrong with one is told to its sender alone."""

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.images.conftest import Reference
from tests.e2e.images.pictures import data_url, picture
from tests.serving.server_process import ServerProcess, running


@pytest.fixture(scope="module")
def server(reference: Reference, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    flags = ("--host", "127.0.0.1", "--port", "0", "--optimization-level", "0", "--max-model-len", "256")
    log = tmp_path_factory.mktemp("server") / "log"
    with running(
        log, str(reference.folder), *flags, "--served-model-name", "seeing", "--max-images-per-prompt", "4"
    ) as made:
        yield made
        assert "Traceback" not in made.log, made.log


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def message(*parts: Any) -> list[Any]:
    """A user's message of texts and images, the latter by their URLs."""
    content = [
        {"type": "image_url", "image_url": {"url": part}} if part.startswith(("data:", "http", "file:")) else
        {"type": "text", "text": part}
        for part in parts
    ]  # fmt: skip
    return [{"role": "user", "content": content}]


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


@pytest.mark.parametrize("route", ["/tokenize", "/v1/chat/completions/render"])
def test_what_has_no_images(server: ServerProcess, route: str) -> None:
    body = {"model": "seeing", "messages": message(data_url(picture(1)), "What is this?")}
    answer = httpx.post(f"{server.url}{route}", json=body, timeout=60)
    assert answer.status_code == 400, answer.text
    assert "image" in answer.json()["error"]["message"]
