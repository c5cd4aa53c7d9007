"""One engine process: started as a command of its own, watched, and ended. `EngineSupervisor` restarts it."""

import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import psutil

from jaxllm import child, version
from jaxllm.serving.ipc.messages import STACKS_SIGNAL

END_SECONDS = 10.0
"""How long a process may take to end before it is killed."""
_STACKS_SECONDS = 0.2
ENGINE_MODULE = "jaxllm.serving.ipc.engine_process"
"""The module that an engine process runs."""


class EngineProcess:
    """`python -m jaxllm.child MODULE FOLDER`.

    Nothing of the caller is run again, so scripts without a main guard and notebooks may start one. The child ends when
    its standard input is closed, by `end` or because this process is gone.
    """

    def __init__(
        self,
        folder: str,
        on_exit: Callable[[str], None],
        module: str = ENGINE_MODULE,
        variables: Mapping[str, str] | None = None,
    ) -> None:
        """`folder` is where the sockets are. `on_exit` is called in a thread, with what can be said of the end.

        `variables` are added to its environment.
        """
        self._child = subprocess.Popen(
            child.command(module, folder),
            stdin=subprocess.PIPE,
            stdout=_stderr(),
            env={**environment(), **(variables or {})},
            # Ctrl-C in a terminal goes to a whole group of processes; this one is to decide alone.
            start_new_session=True,
        )
        self._on_exit = on_exit
        self._waiter = threading.Thread(target=self._wait, name="engine-process-exit", daemon=True)
        self._waiter.start()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._child.pid

    def end(self, *, at_once: bool = False) -> None:
        """End the process and wait for it; kill it if it does not go, or `at_once`. May be called again."""
        assert self._child.stdin is not None
        self._child.stdin.close()
        if at_once:
            self._child.kill()
        try:
            self._child.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
        # One that cannot be killed, in a driver of the device, must not keep us.
        self._waiter.join(END_SECONDS)

    def kill(self, reason: str) -> None:
        """Kill the process, after a moment in which it writes where its threads are; whoever kills it says why."""
        del reason
        kill_with_stacks(self._child, STACKS_SIGNAL)

    def reach(self, folder: str) -> str:
        """The folder of a client's sockets, as the process sees it."""
        return folder

    @property
    def is_stopped(self) -> bool:
        """Whether somebody has stopped it (SIGSTOP)."""
        return is_stopped(self._child.pid)

    def _wait(self) -> None:
        self._on_exit(describe_exit(self._child.wait()))


def kill_with_stacks(process: "subprocess.Popen[bytes]", number: signal.Signals) -> None:
    """Kill a process, after a moment in which it writes where its threads are, as this signal has it do."""
    process.send_signal(number)
    timer = threading.Timer(_STACKS_SECONDS, process.kill)
    timer.daemon = True
    timer.start()


def is_stopped(pid: int) -> bool:
    """Whether somebody has stopped this process (SIGSTOP)."""
    try:
        return bool(psutil.Process(pid).status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


def describe_exit(code: int) -> str:
    """The meaning of a child's exit code, for a person."""
    if code >= 0:
        return f"exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"killed by {name}" + (", perhaps because memory ran out" if name == "SIGKILL" else "")


def _stderr() -> int:
    """Where the child's prints go: not to standard output, which may be somebody's results."""
    try:
        os.fstat(2)
    except OSError:
        return subprocess.DEVNULL
    return 2


def environment() -> dict[str, str]:
    """The environment of the child, which must find the same jaxllm, installed or not."""
    variables = dict(os.environ)
    root = Path(version.__file__).resolve().parent.parent
    if root.name not in ("site-packages", "dist-packages"):
        paths = [str(root), *filter(None, [variables.get("PYTHONPATH")])]
        variables["PYTHONPATH"] = os.pathsep.join(paths)
    return variables
