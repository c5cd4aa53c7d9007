"""An engine process ends with its client, whatever state it is in."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import zmq

from jaxllm import child
from jaxllm.serving.ipc.client.process import ENGINE_MODULE, environment
from jaxllm.serving.ipc.engine_process.__main__ import GRACE_SECONDS

SECONDS = 120.0


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has said hello, and is not told what to load."""
    command = child.command(ENGINE_MODULE, str(tmp_path))
    with zmq.Context() as context, context.socket(zmq.PUSH) as says, context.socket(zmq.PULL) as hears:
        says.bind(f"ipc://{tmp_path}/input")
        hears.bind(f"ipc://{tmp_path}/output")
        with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment(), start_new_session=True) as process:
            try:
                assert hears.poll(int(SECONDS * 1000))
                yield process
            finally:
                process.kill()


@pytest.mark.skipif(sys.platform != "linux", reason="Linux tells a stopped process of its closed pipe")
def test_one_that_is_stopped_ends_with_its_client(engine: subprocess.Popen[bytes]) -> None:
    engine.send_signal(signal.SIGSTOP)
    assert engine.stdin is not None
    engine.stdin.close()
    assert engine.wait(GRACE_SECONDS + SECONDS) == 1


def test_signals_of_a_whole_group_are_for_its_client(engine: subprocess.Popen[bytes]) -> None:
    """Which may still drain."""
    for number in (signal.SIGTERM, signal.SIGINT):
        engine.send_signal(number)
    with pytest.raises(subprocess.TimeoutExpired):
        engine.wait(1)
    assert engine.stdin is not None
    engine.stdin.close()
    assert engine.wait(GRACE_SECONDS + SECONDS) == 1
