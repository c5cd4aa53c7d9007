"""The sandbox's process tells stopped children from those that have ended."""

import os
import signal
import subprocess
import sys
import time

from jaxllm.structured.grammar_sandbox.process import is_stopped


def until_it_is(pid: int, wanted: bool) -> bool:
    deadline = time.monotonic() + 60
    while is_stopped(pid) is not wanted and time.monotonic() < deadline:
        time.sleep(0.01)
    return is_stopped(pid)


def test_a_child_that_has_ended_is_not_stopped() -> None:
    child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
    assert not is_stopped(child.pid)
    os.kill(child.pid, signal.SIGSTOP)
    assert until_it_is(child.pid, True)
    os.kill(child.pid, signal.SIGKILL)
    # It has ended, and nobody has waited for it.
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert not is_stopped(child.pid)
    child.communicate()
    assert child.returncode == -signal.SIGKILL
