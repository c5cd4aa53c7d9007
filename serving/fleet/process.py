"""A server of a fleet: its process, its log, and what happens when it ends."""

import asyncio
import os
import signal
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

MODULE = "jaxllm.serving.cli.fleet_server"
_LONGEST_LINE = 1 << 20


class ServerProcess:
    """`jaxllm serve` with the options of a file. It ends when this process does, however that went."""

    def __init__(self, name: str, config: Path, variables: Mapping[str, str], write: Callable[[str], None]) -> None:
        """`write` gets the lines of its log, each with its name."""
        self._name, self._config, self._variables, self._write = name, config, variables, write
        self._process: asyncio.subprocess.Process

    async def start(self) -> None:
        """Start it. The signals of a terminal are for this process, which tells it to end."""
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", MODULE, str(self._config),
            stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            env={**os.environ, **self._variables}, start_new_session=True, limit=_LONGEST_LINE,
        )  # fmt: skip
        self._log = asyncio.create_task(self._copy_log())

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        """Whether it is gone."""
        return self._process.returncode is not None

    async def wait(self) -> int:
        """Its exit code, once it has ended and its log was read."""
        code = await self._process.wait()
        await self._log
        return code

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it lives."""
        with suppress(ProcessLookupError):
            self._process.send_signal(number)

    async def _copy_log(self) -> None:
        assert self._process.stdout is not None
        while True:
            try:
                line = await self._process.stdout.readline()
            except ValueError:
                # Longer than any line of ours: the reader has dropped it.
                continue
            if not line:
                return
            self._write(named(line.decode("utf-8", "replace").rstrip("\n"), self._name))


def named(line: str, name: str) -> str:
    """A line of a server's log with the server's name: as a field of JSON, or before the text."""
    if line.startswith("{"):
        with suppress(msgspec.DecodeError):
            return msgspec.json.encode({**msgspec.json.decode(line, type=dict), "server": name}).decode()
    return f"{name} | {line}"
