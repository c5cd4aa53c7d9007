"""One canary process, from the side of who asks it."""

import os
import queue
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from jaxllm import child
from jaxllm.structured.grammar_sandbox.messages import PONG, Begin, Frames, Ping, ToCanary, Verdict, framed, write_all

MODULE: Final = "jaxllm.structured.grammar_sandbox.process"
PING_SECONDS: Final = 1.0
MOST_UNANSWERED: Final = 5
"""A process that was asked so often whether it lives, and says nothing, is stopped or hangs: it does little itself."""


class Link:
    """Starts the process, and talks to it on threads: nobody waits in `send`."""

    def __init__(self, begin: Begin, on_verdict: Callable[[Verdict], None], on_end: Callable[["Link"], None]) -> None:
        """Both functions are called in a thread; `on_end` once, when the process has ended, however."""
        self._on_verdict, self._on_end = on_verdict, on_end
        self._child = subprocess.Popen(
            child.command(MODULE),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(),
            # Ctrl-C in a terminal goes to a whole group of processes.
            start_new_session=True,
        )
        self._orders: queue.SimpleQueue[ToCanary | None] = queue.SimpleQueue()
        self._orders.put(begin)
        self._unanswered: int | None = None
        """Pings in a row; None until the process has said something, for it first reads a vocabulary."""
        self._over = threading.Event()
        for work in (self._write, self._read, self._watch):
            threading.Thread(target=work, name=f"canary{work.__name__}", daemon=True).start()

    @property
    def pid(self) -> int:
        """Process id."""
        return self._child.pid

    def send(self, message: ToCanary) -> None:
        """Have this sent."""
        self._orders.put(message)

    def kill(self) -> None:
        """End the process; `on_end` follows."""
        self._child.kill()

    def _write(self) -> None:
        assert self._child.stdin is not None
        with suppress(OSError):
            while (message := self._orders.get()) is not None:
                write_all(self._child.stdin.fileno(), framed(message))
        with suppress(OSError):
            self._child.stdin.close()

    def _watch(self) -> None:
        """End the process when it says nothing any more, though nothing has ended it."""
        self.send(Ping())
        while not self._over.wait(PING_SECONDS):
            if self._unanswered is None:
                continue
            if self._unanswered >= MOST_UNANSWERED:
                self.kill()
                return
            self._unanswered += 1
            self.send(Ping())

    def _hear(self, data: bytes) -> None:
        self._unanswered = 0
        verdict = msgspec.msgpack.decode(data, type=Verdict)
        if verdict.number != PONG:
            self._on_verdict(verdict)

    def _read(self) -> None:
        assert self._child.stdout is not None
        frames = Frames(self._child.stdout.fileno())
        with suppress(OSError, msgspec.DecodeError):
            while frames.read(self._hear):
                pass
        self._child.stdout.close()
        # Whoever sends no sensible verdicts is of no use either.
        self._child.kill()
        self._child.wait()
        self._over.set()
        self._orders.put(None)
        self._on_end(self)


def _environment() -> dict[str, str]:
    """The process must find the same jaxllm, installed or not, and has no use for threads of numpy's."""
    variables = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    root = Path(__file__).resolve().parents[3]
    if root.name not in ("site-packages", "dist-packages"):
        variables["PYTHONPATH"] = os.pathsep.join([str(root), *filter(None, [variables.get("PYTHONPATH")])])
    return variables
