"""One real server, and the same engine offline, for all tests of this folder; they must survive all of them."""

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from jaxllm import LLM
from tests.e2e.serving.metrics import Metrics
from tests.serving.server_process import ServerProcess, running

OPTIONS: dict[str, Any] = {
    "optimization_level": 0,
    "strict_compilation": True,
    "max_model_len": 512,
    "max_num_seqs": 32,
    "max_num_batched_tokens": 64,
    # Room for four of the longest requests.
    "num_gpu_blocks_override": 128,
}
"""Of every engine here: what one has compiled, the others find in the cache."""

FLAGS = (
    *("demo", "--host", "127.0.0.1", "--port", "0", "--optimization-level", "0", "--strict-compilation"),
    *("--max-model-len", "512", "--max-num-seqs", "32", "--max-num-batched-tokens", "64"),
    *("--num-gpu-blocks-override", "128"),
)
"""`OPTIONS` for `jaxllm serve`."""


def left_in(folder: Path) -> list[Path]:
    """The files a server has left in its TMPDIR; the folder of PyTorch, which transformers imports, is not its own."""
    return [path for path in folder.iterdir() if not path.name.startswith("torchinductor")]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("server")
    (folder / "tmp").mkdir()
    traces = ("--profiler-dir", str(folder / "traces"))
    with running(folder / "log", *FLAGS, *traces, environment={"TMPDIR": str(folder / "tmp")}) as server:
        yield server
        Metrics.wait_until_idle(server.url)
        assert " ERROR " not in server.log, server.log
        server.signal(signal.SIGTERM)
        assert server.end() == 0, server.log
        assert "Traceback" not in server.log, server.log
        assert not left_in(folder / "tmp")


@pytest.fixture(scope="session")
def http(server: ServerProcess) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.url, timeout=300) as client:
        yield client


@pytest.fixture(scope="session")
def llm(server: ServerProcess) -> Iterator[LLM]:
    """The same engine in this process. Started after the server: the two would only slow each other down."""
    with LLM("demo", **OPTIONS) as made:
        yield made


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    """An empty folder for the TMPDIR of a server."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    return folder
