"""One real server for all tests of the interface, which it must survive."""

import signal
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
import pytest_asyncio
from openai import AsyncOpenAI, OpenAI

from tests.serving.server_process import ServerProcess, running

KEY = "a key to the server"
OTHER_KEY = "schlüssel"
NAMES = ("demo", "org/demo")
MAX_MODEL_LEN = 256
MAX_SEQUENCES = 8 + 24
"""That run and wait at most."""
MAX_BODY = 2**20

FLAGS = [
    "--host=127.0.0.1", "--port=0", "--optimization-level=0", "--strict-compilation",
    f"--max-model-len={MAX_MODEL_LEN}", "--max-num-seqs=8", "--max-num-batched-tokens=64",
    "--num-gpu-blocks-override=200", "--max-queued-requests=24",
    f"--max-body-size={MAX_BODY}", "--allowed-origins=*", "--scheduling-policy=priority",
    "--log-format=json", "--enable-log-requests", "--max-log-len=20", "--enable-prompt-embeds",
    "--served-model-name", *NAMES,
]  # fmt: skip


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    log = tmp_path_factory.mktemp("server") / "log"
    with running(log, "demo", *FLAGS, environment={"JAXLLM_API_KEY": f"{KEY},{OTHER_KEY}"}) as process:
        yield process
        process.signal(signal.SIGTERM)
        assert process.end() == 0, process.log
    assert "Traceback" not in process.log


@pytest.fixture(scope="session")
def client(server: ServerProcess) -> Iterator[OpenAI]:
    """OpenAI's own client."""
    with OpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, timeout=120) as made:
        yield made


@pytest_asyncio.fixture
async def async_client(server: ServerProcess) -> AsyncIterator[AsyncOpenAI]:
    """OpenAI's own client, asynchronous."""
    async with AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY, max_retries=0, timeout=120) as made:
        yield made


@pytest.fixture(scope="session")
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    """For what OpenAI's client would not send."""
    with httpx.Client(base_url=server.url, headers={"Authorization": f"Bearer {KEY}"}, timeout=120) as made:
        yield made
