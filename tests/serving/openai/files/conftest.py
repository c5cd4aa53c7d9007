"""A server that keeps few and small files: of each of two owners half of what there may be."""

from collections.abc import Iterator

import pytest
from openai import OpenAI

from tests.serving.server_process import SMALL, ServerProcess, running

KEYS = ("first", "second")
FLAGS = (
    *SMALL, "--max-stored-files=12", "--max-stored-file-bytes=800000", "--max-file-size=150000", "--max-batches=3",
    "--stored-file-lifetime=7200", "--max-queued-requests=64",
)  # fmt: skip


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("server")
    with running(folder / "log", "demo", *FLAGS, environment={"JAXLLM_API_KEY": ",".join(KEYS)}) as process:
        yield process
    assert "Traceback" not in process.log


@pytest.fixture
def clients(server: ServerProcess) -> Iterator[tuple[OpenAI, OpenAI]]:
    """Of two owners, whose files are deleted at the end."""
    made = [OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0, timeout=120) for key in KEYS]
    yield made[0], made[1]
    for client in made:
        for batch in client.batches.list():
            if batch.status in ("validating", "in_progress"):
                client.batches.cancel(batch.id)
        for file in client.files.list():
            client.files.delete(file.id)
        client.close()


@pytest.fixture
def client(clients: tuple[OpenAI, OpenAI]) -> OpenAI:
    """OpenAI's own client."""
    return clients[0]
