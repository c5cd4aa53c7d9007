"""`TemplateSandbox`: renders templates of requests in processes that may die of them."""

import json
import os
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from jaxllm.errors import QueueFullError, RequestError
from jaxllm.serving.text.templates.budget import TemplateLimitError
from jaxllm.serving.text.templates.process import LENGTH, read_whole, write_whole
from jaxllm.serving.text.templates.rendering import Conversation

MODULE: Final = "jaxllm.serving.text.templates.process"
SECONDS: Final = 10.0
"""By the clock, for one rendering; a machine that is busy is slower than its processor time tells."""
_SECONDS_PER_BYTE: Final = 1e-5
_KEPT: Final = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "SYSTEMROOT")
"""Variables that the process sees: it has no use for keys."""


class _Process:
    """One process, which renders one template at a time."""

    def __init__(self) -> None:
        self._child = subprocess.Popen(
            # -P: a file of the user's must not be imported from the working directory.
            [sys.executable, "-P", "-m", MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=_environment(),
            start_new_session=True,
        )

    def ask(self, job: bytes) -> bytes:
        """The result of a job; empty if the process has ended over it."""
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        # It also ends a process that is stopped, to which nothing can be written.
        timer = threading.Timer(SECONDS + _SECONDS_PER_BYTE * len(job), self.kill)
        timer.daemon = True
        timer.start()
        try:
            write_whole(self._child.stdin.fileno(), job)
            head = read_whole(self._child.stdout.fileno(), LENGTH.size)
            size = LENGTH.unpack(head)[0] if len(head) == LENGTH.size else 0
            data = read_whole(self._child.stdout.fileno(), size)
            return data if len(data) == size else b""
        except OSError:
            return b""
        finally:
            timer.cancel()

    def kill(self) -> None:
        """End the process."""
        self._child.kill()

    def close(self) -> None:
        """End the process, and wait for that."""
        self.kill()
        with suppress(OSError):
            self._child.communicate()


class TemplateSandbox:
    """Renders in processes, as many as threads ask at once. Thread-safe.

    They are started when first needed. One that takes too long, or too much, is ended, and its request is rejected.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: list[_Process] = []
        self._busy: set[_Process] = set()
        self._closed = False

    def apply(self, template: str, given: Conversation) -> str:
        """The prompt, as `rendering.apply` makes it.

        Raises `RequestError`, sometimes as `TemplateLimitError`, and `QueueFullError` for no process.
        """
        job = json.dumps({"template": template, **msgspec.to_builtins(given)}).encode()
        process = self._take()
        answer = process.ask(job)
        with self._lock:
            self._busy.discard(process)
            closed = self._closed
            if answer and not closed:
                self._idle.append(process)
        if not answer or closed:
            process.close()
        if closed:
            raise QueueFullError("the server is shutting down")
        if not answer:
            raise TemplateLimitError("rendering took too much time or memory and was stopped", "chat_template")
        told: dict[str, str] = json.loads(answer)
        if "limit" in told:
            raise TemplateLimitError(told["limit"], "chat_template")
        if "error" in told:
            raise RequestError(told["error"], "chat_template")
        return told["text"]

    def _take(self) -> _Process:
        with self._lock:
            if self._closed:
                raise QueueFullError("the server is shutting down")
            try:
                process = self._idle.pop() if self._idle else _Process()
            except OSError as error:
                raise QueueFullError(f"cannot start a process to render templates: {error.strerror}") from None
            self._busy.add(process)
        return process

    def close(self) -> None:
        """End the processes; whoever waits gets an error. May be called again."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            busy = list(self._busy)
        for each in busy:
            each.kill()
        for each in idle:
            each.close()


def _environment() -> dict[str, str]:
    """The process must find the same jaxllm, installed or not."""
    variables = {name: os.environ[name] for name in _KEPT if name in os.environ}
    root = Path(__file__).resolve().parents[3]
    paths = [] if root.name in ("site-packages", "dist-packages") else [str(root)]
    given = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return {**variables, "PYTHONPATH": os.pathsep.join([*paths, *given]), "PYTHONDONTWRITEBYTECODE": "1"}
