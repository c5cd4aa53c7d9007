"""The way to an engine that Ray has placed on another machine: that joins us over TCP, as `--headless` would.

Each such engine has a head of its own, with a secret of its own, which Ray hands to the actor.
"""

import contextlib
import secrets
import socket
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from jaxllm.config import DistributedOptions, EngineConfig
from jaxllm.serving.ipc.client.process import EngineProcess
from jaxllm.serving.ipc.remote.head import Head
from jaxllm.serving.ipc.remote.host import HostSession, Stop
from jaxllm.serving.ipc.remote.security import SECRET, keys_of
from jaxllm.serving.options.server import ServerOptions


class Bridge:
    """Listens at an address of this machine for the one host of one engine. A context manager."""

    def __init__(self, config: EngineConfig, address: str, folder: str) -> None:
        """`folder` has the sockets of the engine's client. Raises `ConfigError` when it cannot listen."""
        parallel = replace(
            config.parallel,
            data_parallel_size=1,
            data_parallel_size_local=None,
            data_parallel_start_rank=0,
            data_parallel_backend="mp",
            data_parallel_address=address,
            data_parallel_rpc_port=free_ports(address),
        )
        # Over there nothing is placed: the engine's own configuration comes from its client.
        own = replace(config, parallel=parallel, distributed=DistributedOptions())
        secret = secrets.token_hex(32)
        self.invitation = msgspec.msgpack.encode((own, secret))
        """For `run_invited`, on the other machine."""
        self.reason = ""
        """The reason of the engine's end, once it has ended."""
        self._head = Head(own, keys_of(ServerOptions(), address, {SECRET: secret}))
        self.engine = self._head.launch_of(0)(folder, self._take_end)

    def _take_end(self, reason: str) -> None:
        self.reason = reason

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._head.close()


def run_invited(invitation: bytes, variables: dict[str, str], on_end: Callable[[str], None]) -> None:
    """Run the engine of a bridge on this machine, with these variables, until it is over; then say why."""
    config, secret = msgspec.msgpack.decode(invitation, type=tuple[EngineConfig, str])
    reason = "its host has disconnected"
    try:
        keys = keys_of(ServerOptions(headless=True), config.parallel.data_parallel_address, {SECRET: secret})
        with tempfile.TemporaryDirectory(prefix="jaxllm-ray-") as folder:
            launch = partial(EngineProcess, variables=variables)
            session = HostSession(config, keys, lambda _: launch, Path(folder))
            try:
                session.run(Stop())
            finally:
                session.close()
    except Exception as error:  # noqa: BLE001  (it is told to whoever waits for the end)
        reason = str(error)
    on_end(reason)


def free_ports(address: str, count: int = 1) -> int:
    """The first of `count` consecutive ports that are free at an address of this machine."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    while True:
        with contextlib.ExitStack() as probes:
            probe = probes.enter_context(socket.socket(family))
            probe.bind((address, 0))
            first = int(probe.getsockname()[1])
            try:
                for port in range(first + 1, first + count):
                    probes.enter_context(socket.socket(family)).bind((address, port))
            except (OSError, OverflowError):
                continue
            return first
