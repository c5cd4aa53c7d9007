"""Speculative decoding in a real server: predictions, a request's own limit, metrics, and what is wrong."""

import re
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.serving.server_process import SMALL, ServerProcess, running

ASKED: Any = [{"role": "user", "content": "Tell me a story about a dog."}]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    flags = ("--speculative-config.method", "ngram", "--spec-tokens", "5")
    with running(tmp_path_factory.mktemp("log") / "log", *SMALL, *flags) as server:
        yield server


@pytest.fixture(scope="module")
def client(server: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def counted(server: ServerProcess, name: str) -> float:
    found = re.search(rf"^jaxllm:{name}_total{{.*}} (.*)$", httpx.get(f"{server.url}/metrics").text, re.MULTILINE)
    assert found
    return float(found[1])


def test_a_prediction_changes_no_text(server: ServerProcess, client: openai.OpenAI) -> None:
    def text(**more: Any) -> str:
        made: Any = client.chat.completions.create(
            model="demo",
            messages=ASKED,
            temperature=0,
            max_tokens=60,
            **more,
        )
        return str(made.choices[0].message.content)

    plain = text(extra_body={"speculative_tokens": 0})
    assert plain
    for prediction in (plain, [{"type": "text", "text": plain}], plain[: len(plain) // 2] + " " + plain, "😀" * 9):
        assert text(prediction={"type": "content", "content": prediction}) == plain
    # How many drafts are worth it depends on the machine.
    accepted = counted(server, "spec_decode_num_accepted_tokens")
    assert accepted <= counted(server, "spec_decode_num_draft_tokens")


@pytest.mark.parametrize(
    "prediction", [{"type": "text", "content": "x"}, {"type": "content"}, {"type": "content", "content": 5}, "x"]
)
def test_a_wrong_prediction_is_an_error(client: openai.OpenAI, prediction: Any) -> None:
    with pytest.raises(openai.BadRequestError, match="prediction"):
        client.chat.completions.create(
            model="demo",
            messages=ASKED,
            prediction=prediction,
        )
    with pytest.raises(openai.BadRequestError, match="speculative_tokens"):
        client.chat.completions.create(
            model="demo",
            messages=ASKED,
            extra_body={"speculative_tokens": -1},
        )
