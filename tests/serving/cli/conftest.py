from collections.abc import Iterator

import pytest

from tests.serving.cli.commands import KEY
from tests.serving.server_process import SMALL, ServerProcess, running


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One for the tests of all clients; it wants a key."""
    log = tmp_path_factory.mktemp("server") / "log"
    with running(log, *SMALL, environment={"JAXLLM_API_KEY": KEY}) as process:
        yield process
