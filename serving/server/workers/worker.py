"""One API server process, as the supervisor sees it."""

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress

from jaxllm import child
from jaxllm.serving.ipc.client.process import describe_exit, environment, is_stopped, kill_with_stacks
from jaxllm.serving.server.workers import messages
from jaxllm.serving.server.workers.messages import STACKS_SIGNAL, ToWorker, WorkerConfig

MODULE = "jaxllm.serving.server.workers"


class Worker:
    """A child that answers HTTP. It ends with this process, however that one ends."""

    def __init__(
        self,
        given: WorkerConfig,
        on_message: Callable[["Worker", messages.FromWorker], None],
        on_exit: Callable[["Worker", str], None],
    ) -> None:
        """Both functions are called in a thread, `on_exit` last, with what can be said of the end."""
        self.index = given.index
        self._on_message, self._on_exit = on_message, on_exit
        self._reason: str | None = None
        self._channel, theirs = socket.socketpair()
        with theirs:
            self._child = subprocess.Popen(
                child.command(MODULE),
                stdin=theirs.fileno(),
                env=_environment(),
                pass_fds=(given.listener, given.shared_metrics, given.shared_adapters),
                # Ctrl-C in a terminal goes to a whole group of processes; who drains is the supervisor's to decide.
                start_new_session=True,
            )
        messages.send(self._channel, given)
        threading.Thread(target=self._listen, name="api-server-watch", daemon=True).start()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._child.pid

    def signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        self._child.send_signal(number)

    @property
    def is_stopped(self) -> bool:
        """Whether somebody has stopped it (SIGSTOP)."""
        return is_stopped(self._child.pid)

    @property
    def is_killed(self) -> bool:
        """Whether it has been killed because it does not do what it should."""
        return self._reason is not None

    def kill(self, reason: str) -> None:
        """End it, for a reason that is then said of its end; first it writes where its threads are, if it can."""
        self._reason = reason
        kill_with_stacks(self._child, STACKS_SIGNAL)

    def tell(self, message: ToWorker) -> None:
        """Tell it something; one that is gone need not know."""
        with suppress(OSError):
            messages.send(self._channel, message)

    def _listen(self) -> None:
        for message in messages.messages_from(self._channel):
            self._on_message(self, message)
        code = self._child.wait()
        meaning = self._reason or describe_exit(code)
        self._channel.close()
        self._on_exit(self, meaning)


def _environment() -> dict[str, str]:
    """The engine's environment, with our own module paths: middleware is found there."""
    paths = [path or os.getcwd() for path in sys.path]  # noqa: PTH109  (an entry of PYTHONPATH)
    return {**environment(), "PYTHONPATH": os.pathsep.join(paths)}
