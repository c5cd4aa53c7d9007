"""Two keys at a pooling server: one's many texts do not make the other's one wait."""

import re
import signal
import threading
import time
from collections.abc import Iterator

import httpx
import pytest
from openai import OpenAI
from openai.types import CreateEmbeddingResponse

from tests.serving.server_process import ServerProcess, running

FLAGS = (
    *("--host=127.0.0.1", "--port=0", "--optimization-level=0", "--runner=pooling", "--max-model-len=64"),
    *("--max-num-seqs=1", "--max-num-batched-tokens=64", "--max-queued-requests=8000"),
)
MANY = [[5 + number % 7] * 60 for number in range(4000)]
"""A step for each."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("tenants") / "log"
    with running(log, "demo", *FLAGS, environment={"JAXLLM_API_KEY": "of-ada,of-ben"}) as process:
        yield process
        process.signal(signal.SIGTERM)
        assert process.end() == 0, process.log
    assert "Traceback" not in process.log


def _client(server: ServerProcess, key: str) -> OpenAI:
    return OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=300)


def _waiting(server: ServerProcess) -> int:
    text = httpx.get(f"{server.url}/metrics", timeout=60).text
    found = re.search(r"^jaxllm:num_requests_waiting\S* (\d+)", text, re.MULTILINE)
    assert found is not None
    return int(found[1])


def test_one_text_does_not_wait_behind_many_of_another_key(server: ServerProcess) -> None:
    with _client(server, "of-ada") as ada, _client(server, "of-ben") as ben:
        answers: list[CreateEmbeddingResponse] = []
        thread = threading.Thread(
            target=lambda: answers.append(ada.embeddings.create(model="demo", input=MANY)), daemon=True
        )
        thread.start()
        deadline = time.monotonic() + 60
        while _waiting(server) < len(MANY) // 4:
            assert time.monotonic() < deadline
            time.sleep(0.005)
        assert ben.embeddings.create(model="demo", input="once upon a time").data
        assert not answers, "it came last"
        thread.join(300)
        assert [len(each.data) for each in answers] == [len(MANY)]
