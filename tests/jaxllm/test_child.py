"""A child ends with whoever has started it, however far it has come."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from jaxllm import child
from jaxllm.serving.ipc.client.process import environment

pytestmark = pytest.mark.skipif(not hasattr(os, "O_ASYNC"), reason="the system must tell of pipes that are closed")
SECONDS = 60.0
IMPORTS = "import pathlib, time; pathlib.Path('imports').touch(); time.sleep(600)"
"""A module that does not get to its end, as on a machine that is busy with others."""


@pytest.fixture
def importing(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[bytes], socket.socket]]:
    """A process that imports its module, and the end that must stay open."""
    (tmp_path / "slow.py").write_text(IMPORTS)
    (tmp_path / "folder").mkdir()
    variables = environment()
    variables["PYTHONPATH"] = f"{tmp_path}{os.pathsep}{variables.get('PYTHONPATH', '')}"
    ours, theirs = socket.socketpair()
    command = child.command("slow", str(tmp_path / "folder"))
    process = subprocess.Popen(command, stdin=theirs.fileno(), env=variables, cwd=tmp_path)
    theirs.close()
    try:
        _wait_for((tmp_path / "imports").exists)
        yield process, ours
    finally:
        process.kill()
        process.wait()
        ours.close()


def _wait_for(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.parametrize("stopped", [False, True], ids=["running", "stopped"])
def test_one_that_imports_ends_and_leaves_nothing(
    importing: tuple[subprocess.Popen[bytes], socket.socket], tmp_path: Path, stopped: bool
) -> None:
    process, ours = importing
    # Input does not end it, and what nobody has read yet does not keep it.
    ours.sendall(b"x" * 1000)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.2)
    if stopped:
        process.send_signal(signal.SIGSTOP)
        _wait_for(lambda: psutil.Process(process.pid).status() == psutil.STATUS_STOPPED)
    ours.close()
    assert process.wait(SECONDS) == 1
    assert not (tmp_path / "folder").exists()


def test_one_whose_parent_is_gone_imports_nothing(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(IMPORTS)
    variables = {**environment(), "PYTHONPATH": f"{tmp_path}{os.pathsep}{environment().get('PYTHONPATH', '')}"}
    read, write = os.pipe()
    os.close(write)
    with subprocess.Popen(child.command("slow"), stdin=read, env=variables, cwd=tmp_path) as process:
        os.close(read)
        assert process.wait(SECONDS) == 1
    assert not (tmp_path / "imports").exists()


def test_one_that_is_stopped_ends_with_its_parent(tmp_path: Path) -> None:
    """Once its imports are done, too: the system continues it."""
    (tmp_path / "waits.py").write_text(
        "import pathlib, sys; from jaxllm.child import imports_done; imports_done();"
        "pathlib.Path('imports').touch(); sys.stdin.read()"
    )
    variables = {**environment(), "PYTHONPATH": f"{tmp_path}{os.pathsep}{environment().get('PYTHONPATH', '')}"}
    parent = (
        "import subprocess, time; from jaxllm import child;"
        "print(subprocess.Popen(child.command('waits'), stdin=subprocess.PIPE).pid, flush=True); time.sleep(600)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", parent], stdout=subprocess.PIPE, env=variables, cwd=tmp_path
    ) as process:
        assert process.stdout is not None
        one = psutil.Process(int(process.stdout.readline()))
        try:
            _wait_for((tmp_path / "imports").exists)
            one.suspend()
            _wait_for(lambda: one.status() == psutil.STATUS_STOPPED)
            process.kill()
            psutil.wait_procs([one], SECONDS)
            assert not one.is_running() or one.status() == psutil.STATUS_ZOMBIE
        finally:
            for each in (process, one):
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
