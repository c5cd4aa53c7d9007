"""A server in a process of its own, for the length of a benchmark."""

import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil


class RunningServer:
    """`jaxllm serve` with these arguments on a free port. A context manager: inside, it is ready.

    Raises `RuntimeError`, with the end of its log, when it does not start.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        log: Path,
        command: Sequence[str] = ("jaxllm.serving.cli.main", "serve"),
        environment: Mapping[str, str] | None = None,
        port: int | None = None,
    ) -> None:
        """`log` is the file that takes what it prints, `command` the module to run, with its first arguments.

        `port` is that of a server from which it takes over; None: one that is free.
        """
        self._log_file = log
        self.port = port or _free_port()
        self.base_url = f"http://127.0.0.1:{self.port}"
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                [sys.executable, "-m", *command, *arguments, "--host", "127.0.0.1", "--port", str(self.port)],
                stdout=file,
                stderr=subprocess.STDOUT,
                env={**os.environ, **(environment or {})},
            )

    def memory(self) -> dict[str, float]:
        """Resident memory of its processes in MiB: the server's and the engine's."""
        server = psutil.Process(self.process.pid)
        engine = sum(child.memory_info().rss for child in server.children(recursive=True))
        return {"server": server.memory_info().rss / 2**20, "engine": engine / 2**20}

    def cpu_seconds(self) -> dict[str, float]:
        """CPU time that its processes have used so far."""
        server = psutil.Process(self.process.pid)
        times = [child.cpu_times() for child in server.children(recursive=True)]
        own = server.cpu_times()
        return {"server": own.user + own.system, "engine": sum(each.user + each.system for each in times)}

    def __enter__(self) -> Self:
        while not self._ready():
            if self.process.poll() is not None:
                raise RuntimeError(f"the server did not start:\n{self._log()[-2000:]}")
            time.sleep(0.2)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.base_url}/ready", timeout=5) as response:
                return bool(response.status == 200)
        except urllib.error.HTTPError as error:
            error.close()  # it holds the connection
            return False
        except OSError:
            return False

    def _log(self) -> str:
        return self._log_file.read_text(encoding="utf-8", errors="replace")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
