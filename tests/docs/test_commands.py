"""Commands that the pages show are run as they stand there, or are marked as not run, with a reason.

Of `jaxllm serve`, the options are read and checked as at a start, which would take longer than all the rest; the server
that is asked is one of `demo`.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import ROOT
from tests.docs.documented import BLOCKS, Block, blocks_of, check_serve
from tests.docs.test_names import PAGES, name_of
from tests.serving.server_process import SMALL, ServerProcess, running

RUN = [block for block in BLOCKS if block.reason is None]
ASKING = [block for block in RUN if "curl" in block.text]
"""Those that need a server."""
SHIM = """#!/bin/sh
[ "$1" != serve ] || {{ shift; printf '%s\\0' "$@" >> "$SERVERS"; printf '\\n' >> "$SERVERS"; exit 0; }}
PYTHONPATH={root}:$PYTHONPATH exec {python} -m tests.docs.replaced "$@"
"""
"""Writes down what servers are to be started with, and runs all other commands."""


@pytest.fixture(scope="module")
def tools(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a `jaxllm` that starts no servers, and a home where curl fails on errors."""
    folder = tmp_path_factory.mktemp("tools")
    shim = folder / "jaxllm"
    shim.write_text(SHIM.format(root=ROOT, python=sys.executable))
    shim.chmod(0o755)
    (folder / ".curlrc").write_text("silent\nshow-error\nfail\n")
    for completions in (".local/share/bash-completion/completions", ".zfunc", ".config/fish/completions"):
        (folder / completions).mkdir(parents=True)
    return folder


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with running(tmp_path_factory.mktemp("commands") / "log", "demo", *SMALL) as process:
        yield process


def run(block: Block, tools: Path, folder: Path, port: int = 8000) -> None:
    """Run a block in a folder, and check the options of the servers that it would start."""
    script = block.text
    for host in ("localhost", "127.0.0.1"):
        script = script.replace(f"{host}:8000", f"127.0.0.1:{port}")
    path = os.pathsep.join([str(tools), str(Path(sys.executable).parent), os.environ["PATH"]])
    with subprocess.Popen(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env={**os.environ, "PATH": path, "HOME": str(tools), "SERVERS": str(folder / "servers")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as process:
        try:
            said, _ = process.communicate(timeout=120)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # what the shell has started, too
            raise
    assert process.returncode == 0, f"{block.name}\n{script}\n{said}"
    servers = folder / "servers"
    for line in servers.read_text().split("\0\n") if servers.exists() else []:
        check_serve([word for word in line.strip("\n").split("\0") if word])


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_marks_stand_before_commands(page: Path) -> None:
    _, stray = blocks_of(page)
    assert stray == []


def test_many_are_run() -> None:
    assert len(RUN) >= 30
    assert all(block.reason.strip() for block in BLOCKS if block.reason is not None)


@pytest.mark.parametrize("block", [each for each in RUN if each not in ASKING], ids=lambda block: block.name)
def test_a_block_runs(block: Block, tools: Path, tmp_path: Path) -> None:
    run(block, tools, tmp_path)


@pytest.mark.parametrize("block", ASKING, ids=lambda block: block.name)
def test_a_block_asks_a_server(block: Block, tools: Path, tmp_path: Path, server: ServerProcess) -> None:
    run(block, tools, tmp_path, server.port)
