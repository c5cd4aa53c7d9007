"""`jaxllm serve --disaggregate`: servers on this machine, and a router in front of them."""

import asyncio
import logging
import secrets
import signal
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError, EngineError
from jaxllm.serving.fleet.process import ServerProcess
from jaxllm.serving.fleet.run import routing
from jaxllm.serving.fleet.servers import FleetServer, Role
from jaxllm.serving.fleet.settings import LOOPBACK, FleetSettings, free_port
from jaxllm.serving.ipc.client.supervisor import RestartBudget
from jaxllm.serving.options.server import ServerOptions
from jaxllm.serving.server.event_loop import run_on_fast_loop
from jaxllm.serving.server.listener import Listener
from jaxllm.serving.server.signals import Signals, before, cancel
from jaxllm.serving.telemetry.logs import configure_logging

logger = logging.getLogger(__name__)

_LOOK_SECONDS = 0.2
_GRACE_SECONDS = 15.0
"""What servers get beyond --shutdown-timeout before they are killed."""
_WRONG_OPTIONS = 2
"""The exit code of a server whose options are wrong."""


def run_fleet(given: Mapping[str, Any], config: EngineConfig, options: ServerOptions) -> int:
    """Serve until told to end; the exit code. `given` are the options that were given, of engine and server.

    Raises `ConfigError` and `EngineError`.
    """
    configure_logging(options.log_level, json_lines=options.log_format == "json")
    return run_on_fast_loop(_serve(given, config, options))


async def _serve(given: Mapping[str, Any], config: EngineConfig, options: ServerOptions) -> int:
    sizes = options.fleet_sizes
    assert sizes is not None
    if options.api_key_file is not None and not options.api_key:
        # The router asks servers what only those learn who have a key, and those of the clients are theirs.
        own = (secrets.token_urlsafe(32),)
        given, options = {**given, "api_key": own}, replace(options, api_key=own)
    with Listener(options) as listener, Signals() as signals, tempfile.TemporaryDirectory(prefix="jaxllm-") as folder:
        settings = FleetSettings(given, config, options, Path(folder), sum(sizes))
        settings.write_secret(secrets.token_urlsafe(32))
        fleet = Fleet(settings, options, sizes)
        try:
            starting = asyncio.ensure_future(fleet.start())
            if not await before(signals.first, starting):
                logger.info("received a signal to exit before the fleet was ready")
                await cancel(starting)
                return signals.exit_code
            starting.result()
            servers = [member.server for member in fleet.members]
            async with routing(servers, options, listener, signals):
                await before(signals.first, fleet.loss)
            if fleet.loss.done() and not signals.second.is_set():
                fleet.loss.result()
        finally:
            await fleet.end(signals)
        return signals.exit_code


class Member:
    """One server of the fleet."""

    def __init__(self, number: int, role: Role, name: str, port: int) -> None:
        self.name, self.role, self.port, self.number = name, role, port, number
        self.server = FleetServer(number, role, f"http://{LOOPBACK}:{port}", name)
        self.process: ServerProcess | None = None


class Fleet:
    """The servers, which are started again when they end, as long as the budget lasts. Belongs to an event loop."""

    def __init__(self, settings: FleetSettings, options: ServerOptions, sizes: tuple[int, int]) -> None:
        """`sizes` are the numbers of servers that compute prompts, and of those that decode. Nothing is started yet."""
        self._settings, self._options = settings, options
        self._ending = False
        self._watching: list[asyncio.Task[None]] = []
        self.loss: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Has an `EngineError` when no server answers any more, and none will."""
        names: list[tuple[Role, str]] = [("decode", f"decode-{number}") for number in range(sizes[1])]
        names += [("prefill", f"prefill-{number}") for number in range(sizes[0])]
        ports: list[int] = []
        while len(ports) < len(names):
            port = free_port()
            if port not in ports:
                ports.append(port)
        self.members = [Member(number, *each, ports[number]) for number, each in enumerate(names)]
        self._lost: set[str] = set()

    async def start(self) -> None:
        """Start all servers. The first one compiles, and the others find everything on disk.

        Raises `ConfigError` and `EngineError` when one does not start.
        """
        first, *others = self.members
        logger.info("starting %s, then %d more servers", first.name, len(others))
        await self._start(first)
        await asyncio.gather(*map(self._start, others))
        self._watching = [asyncio.create_task(self._watch(member)) for member in self.members]

    async def _start(self, member: Member) -> None:
        process = await self._spawn(member)
        while not await self._is_healthy(member):
            if process.has_ended:
                code = await process.wait()
                error = ConfigError if code == _WRONG_OPTIONS else EngineError
                raise error(f"{member.name} did not start (exit code {code}): its log says why")
            await asyncio.sleep(_LOOK_SECONDS)

    async def _spawn(self, member: Member) -> ServerProcess:
        config = self._settings.write(member.role, member.name, member.port, first=member.number == 0)
        variables = self._settings.variables[member.number]
        process = member.process = ServerProcess(member.name, config, variables, _write)
        await process.start()
        return process

    @staticmethod
    async def _is_healthy(member: Member) -> bool:
        await member.server.check()
        return member.server.is_up

    async def _watch(self, member: Member) -> None:
        """Start the server again when it ends."""
        budget = RestartBudget(self._options.max_restarts, self._options.restart_window)
        while not self._ending:
            assert member.process is not None
            code = await member.process.wait()
            if self._ending:
                return
            member.server.fail(f"its process ended (exit code {code})")
            delay = budget.take()
            if delay is None:
                self._lose(member, f"{member.name} has ended for good (exit code {code}){budget}")
                return
            await asyncio.sleep(delay)
            await self._spawn(member)

    def _lose(self, member: Member, reason: str) -> None:
        logger.error("%s", reason)
        self._lost.add(member.name)
        left = [each for each in self.members if each.role == "decode" and each.name not in self._lost]
        if not left and not self.loss.done():
            self.loss.set_exception(EngineError(reason))

    async def end(self, signals: Signals) -> None:
        """Let all servers finish, and kill those that do not."""
        self._ending = True
        for task in self._watching:
            await cancel(task)
        there = [member.process for member in self.members if member.process is not None]
        for process in there:
            if not process.has_ended:
                process.signal(signal.SIGTERM)
        ending = asyncio.gather(*(process.wait() for process in there))
        if not await before(signals.second, ending, self._options.shutdown_timeout + _GRACE_SECONDS):
            for process in there:
                process.signal(signal.SIGKILL)
        await ending
        for member in self.members:
            await member.server.close()
        if not self.loss.cancel():
            self.loss.exception()


def _write(line: str) -> None:
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
