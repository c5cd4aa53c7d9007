"""`jaxllm serve` as a process of its own, and its streams, for tests of its life."""

import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil

from jaxllm.serving.bench.client import EventReader

SMALL = (
    *("--host", "127.0.0.1", "--port", "0", "--optimization-level", "0", "--strict-compilation"),
    *("--max-num-seqs", "4", "--max-num-batched-tokens", "16", "--max-model-len", "512"),
)
"""Flags of a server that starts soon: it has three shapes to compile, and what one has compiled, the others find."""

LONG: dict[str, Any] = {
    "prompt": "Once upon a time", "max_tokens": 480, "n": 16, "ignore_eos": True, "temperature": 1, "stream": True,
}  # fmt: skip
"""The body of a request that takes seconds on any machine: time enough to end something beneath it."""

# Compiling on a busy machine takes long; a test that hangs takes this long once.
_START_SECONDS = 300.0
_END_SECONDS = 60.0


ONE_DEVICE = {"JAX_NUM_CPU_DEVICES": "1"}
"""As a server has it: the virtual devices of the tests bring threads, and threads bring memory."""


class ServerProcess:
    """A server and its log."""

    def __init__(self, arguments: tuple[str, ...], log: Path, environment: Mapping[str, str]) -> None:
        self._log_file = log
        command = [sys.executable, "-m", "jaxllm.serving.cli.main", "serve", *arguments]
        with log.open("wb") as file:
            self.process = subprocess.Popen(
                command, stdout=file, stderr=file, env={**os.environ, **ONE_DEVICE, **environment}
            )

    @property
    def log(self) -> str:
        """The log so far."""
        return self._log_file.read_text()

    @property
    def port(self) -> int:
        """The port that it has told."""
        found = re.search(r"://[\w.]+:(\d+)", self.log)
        assert found is not None, self.log
        return int(found[1])

    @property
    def url(self) -> str:
        """Its base URL, where it speaks HTTP on a port."""
        return f"http://127.0.0.1:{self.port}"

    def engine(self) -> psutil.Process:
        """Its engine process."""
        return self._child("jaxllm.serving.ipc.engine_process")

    def canary(self) -> psutil.Process:
        """The process that tries new grammars."""
        return self._child("jaxllm.structured.grammar_sandbox.process")

    def _child(self, module: str) -> psutil.Process:
        deadline = time.monotonic() + _END_SECONDS
        # One that has just been forked is not what it will be.
        while not (found := [child for child in self._children() if module in child.cmdline()]):
            assert time.monotonic() < deadline, self.log
            time.sleep(0.02)
        return found[0]

    def _children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()

    def wait_for(self, text: str) -> None:
        """Wait until its log has `text`."""
        deadline = time.monotonic() + _START_SECONDS
        while text not in self.log:
            assert self.process.poll() is None, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.05)

    def wait_until_it_listens(self) -> None:
        """Wait until it takes connections, which comes right after the banner."""
        self.wait_for("OpenAI API")
        if "unix:" in self.log:
            return
        deadline = time.monotonic() + _END_SECONDS
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            assert time.monotonic() < deadline, self.log
            time.sleep(0.05)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def end(self) -> int:
        """Wait until it has ended; its exit code."""
        return self.process.wait(_END_SECONDS)


@contextmanager
def running(
    log: Path, *arguments: str, environment: Mapping[str, str] | None = None, wait: bool = True
) -> Iterator[ServerProcess]:
    """A server with these flags, ready unless not to be waited for; at the end nothing of it is left."""
    server = ServerProcess(arguments, log, environment or {})
    try:
        if wait:
            server.wait_until_it_listens()
        yield server
    finally:
        if server.process.poll() is None:
            children = psutil.Process(server.process.pid).children(recursive=True)
            server.process.kill()
            server.process.wait()
            psutil.wait_procs(children, timeout=_END_SECONDS)


def _events(response: httpx.Response) -> Iterator[bytes]:
    reader = EventReader()
    for data in response.iter_bytes():
        yield from reader.feed(data)


class Stream(threading.Thread):
    """Reads a stream of completions alongside the test, which goes on after the first event unless it does not
    `wait`.
    """

    def __init__(self, client: httpx.Client, body: dict[str, Any], *, wait: bool = True) -> None:
        super().__init__(daemon=True)
        self.begun = threading.Event()
        self.events: list[bytes] = []
        self.cut_off = False
        self._client, self._body = client, body
        self.start()
        assert not wait or self.begun.wait(_START_SECONDS)

    def run(self) -> None:
        try:
            with self._client.stream("POST", "/v1/completions", json=self._body, timeout=_START_SECONDS) as response:
                for event in _events(response):
                    self.events.append(event)
                    self.begun.set()
        except httpx.TransportError:
            self.cut_off = True

    def rest(self) -> list[bytes]:
        """All events, when the stream has ended; `cut_off` says whether the connection broke."""
        self.join(_START_SECONDS)
        assert not self.is_alive()
        return self.events


def streams(*clients: httpx.Client, n: int = 16) -> list[Stream]:
    """A long stream for each client, all taken by the server, which may not have begun with the later ones."""
    taken = [Stream(client, {**LONG, "n": n}, wait=False) for client in clients]
    deadline = time.monotonic() + _END_SECONDS
    while clients[0].get("/load").json() != {"server_load": len(clients)}:
        assert time.monotonic() < deadline, [(each.is_alive(), each.cut_off, each.events[-1:]) for each in taken]
        time.sleep(0.02)
    return taken
