"""A server that a sweep starts."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from types import TracebackType
from typing import IO, Self

import httpx

from jaxllm.errors import EngineError

_STOP_SECONDS = 30.0


class SweepServer:
    """A command that serves at a URL; a context manager: inside it is ready, and after it nothing is left of it.

    Raises `EngineError` when it ends, or does not answer within `seconds`. `log` takes what it prints.
    """

    def __init__(self, command: Sequence[str], url: str, log: IO[str], seconds: float) -> None:
        self.url = url
        self._command, self._log, self._seconds = list(command), log, seconds

    def __enter__(self) -> Self:
        if self._ready():
            raise EngineError(
                f"another server already listens at {self.url}: stop it, or give another --port in the command"
            )
        try:
            # A session of its own, so that a signal reaches whatever it starts, and Ctrl-C reaches it only through us.
            self._process = subprocess.Popen(
                self._command, stdout=self._log, stderr=subprocess.STDOUT, start_new_session=True
            )
        except OSError as error:
            raise EngineError(f"cannot run {self._command[0]}: {error}") from None
        try:
            self._wait()
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop()

    def forget_prefixes(self) -> None:
        """Have it empty its prefix cache, where it has a route for that."""
        try:
            httpx.post(f"{self.url}/reset_prefix_cache", timeout=60, trust_env=False)
        except httpx.HTTPError as error:
            sys.stderr.write(f"jaxllm: the prefix cache was not cleared: {error}\n")

    def _wait(self) -> None:
        deadline = time.monotonic() + self._seconds
        while not self._ready():
            if self._process.poll() is not None:
                raise EngineError(f"the server ended with code {self._process.returncode}: see {self._log.name}")
            if time.monotonic() > deadline:
                raise EngineError(f"the server was not ready after {self._seconds:g} s: see {self._log.name}")
            time.sleep(0.2)

    def _ready(self) -> bool:
        try:
            return httpx.get(f"{self.url}/health", timeout=5, trust_env=False).is_success
        except httpx.HTTPError:
            return False

    def _stop(self) -> None:
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(_STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._signal(signal.SIGKILL)
            self._process.wait()

    def _signal(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, number)
