"""A server of a checkpoint without a tokenizer: token ids in and out."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.serving.server_process import SMALL, running

TOKENS = [1, 285, 203, 601, 83, 2, 203]
GENERATE, COMPLETIONS = "/inference/v1/generate", "/v1/completions"


@pytest.fixture(scope="module")
def http(demo_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    folder = tmp_path_factory.mktemp("checkpoint")
    for name in ("config.json", "generation_config.json", "model.safetensors"):
        shutil.copy(demo_folder / name, folder)
    log = tmp_path_factory.mktemp("server") / "log"
    with (
        running(log, str(folder), *SMALL, "--skip-tokenizer-init", "--served-model-name", "demo") as process,
        httpx.Client(base_url=process.url, timeout=60) as client,
    ):
        yield client
        assert "Traceback" not in process.log


def test_token_ids_in_and_out(http: httpx.Client) -> None:
    params = {"max_tokens": 5, "temperature": 0, "logprobs": 1}
    (choice,) = http.post(GENERATE, json={"token_ids": TOKENS, "sampling_params": params}).json()["choices"]
    assert len(choice["token_ids"]) == len(choice["logprobs"]["content"]) == 5
    body = {"prompt": TOKENS, "max_tokens": 5, "temperature": 0, "return_token_ids": True}
    (same,) = http.post(COMPLETIONS, json=body).json()["choices"]
    assert same["token_ids"] == choice["token_ids"]
    assert same["prompt_token_ids"] == TOKENS
    assert same["text"] == ""
    stream = http.post(GENERATE, json={"token_ids": TOKENS, "sampling_params": params, "stream": True})
    assert stream.status_code == 200
    assert "[DONE]" in stream.text


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (GENERATE, {"token_ids": TOKENS, "sampling_params": {"stop": ["a"]}}),
        (GENERATE, {"token_ids": TOKENS, "sampling_params": {}, "output_mode": "text"}),
        (GENERATE, {"token_ids": TOKENS, "sampling_params": {"bad_words": ["a"]}}),
        (GENERATE, {"token_ids": TOKENS, "sampling_params": {"structured_outputs": {"regex": "a"}}}),
        (COMPLETIONS, {"prompt": "a"}),
        (COMPLETIONS, {"prompt": TOKENS, "echo": True}),
        (COMPLETIONS, {"prompt": TOKENS, "logprobs": 1}),
        (COMPLETIONS, {"prompt": TOKENS, "stop": "a"}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/chat/completions/render", {"messages": [{"role": "user", "content": "a"}]}),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 1}),
        ("/v1/responses", {"input": "a"}),
        ("/tokenize", {"prompt": "a"}),
        ("/detokenize", {"tokens": [5]}),
        ("/generate", {"prompt": "a"}),
    ],
)
def test_what_needs_text_is_refused(http: httpx.Client, path: str, body: dict[str, Any]) -> None:
    refused = http.post(path, json=body)
    assert refused.status_code == 400, refused.text
    assert "tokenizer" in refused.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/health", "/ready", "/v1/models", "/metrics", "/openapi.json", "/"])
def test_all_else_is_there(http: httpx.Client, path: str) -> None:
    assert http.get(path).status_code == 200
