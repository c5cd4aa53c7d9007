"""A host that runs engines for a server elsewhere: `jaxllm serve --headless`."""

import logging
import shutil
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import msgspec
import zmq
from zmq.utils.monitor import recv_monitor_message

from jaxllm.config import EngineConfig
from jaxllm.errors import ConfigError
from jaxllm.serving.ipc.client.connection import EngineHandle, Launch
from jaxllm.serving.ipc.remote.head import tcp
from jaxllm.serving.ipc.remote.messages import (
    ALIVE_SECONDS,
    SILENCE_SECONDS,
    Alive,
    Close,
    End,
    Exited,
    Join,
    Leave,
    Open,
    Refused,
    Start,
    Taken,
    ToHost,
    Welcome,
)
from jaxllm.serving.ipc.remote.relay import Relay
from jaxllm.serving.ipc.remote.security import Keys, protect
from jaxllm.version import __version__

logger = logging.getLogger(__name__)

_DIAL_SECONDS = 1.0
_WRONG_HANDSHAKES = 3
"""One may be by chance, when the server ends just then."""
_LATER_SECONDS = 30.0
"""How long another host may have our places: the server may not have missed our predecessor yet."""
_FAILED = zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL


def run_host(config: EngineConfig, keys: Keys | None, launch_of: Callable[[int], Launch]) -> int:
    """Run engines for the server until SIGTERM or Ctrl-C; the exit code. Raises `ConfigError` when it is refused.

    `launch_of` tells how each of this host's engines starts, counted from 0; it may raise `ConfigError`.
    """
    wanted = Stop()
    folder = tempfile.mkdtemp(prefix="jaxllm-host-")
    try:
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, wanted.ask)
        while not wanted.asked:
            host = HostSession(config, keys, launch_of, Path(folder))
            try:
                host.run(wanted)
            finally:
                host.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


class Stop:
    """Whether somebody has asked for the end."""

    asked = False

    def ask(self, number: int, frame: FrameType | None) -> None:
        """Ask for it: a handler of signals."""
        del number, frame
        self.asked = True


class HostSession:
    """One membership: from dialling until the server has gone, or has forgotten us."""

    def __init__(
        self, config: EngineConfig, keys: Keys | None, launch_of: Callable[[int], Launch], folder: Path
    ) -> None:
        """See `run_host`. `folder` gets the sockets."""
        self._config, self._launch_of, self._folder = config, launch_of, folder
        parallel = config.parallel
        self._first, self._count = parallel.data_parallel_start_rank or 0, parallel.engines_here
        self._address = tcp(parallel.data_parallel_address, parallel.data_parallel_rpc_port)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._wire = wire = self._context.socket(zmq.DEALER)
        protect(wire, keys, is_head=False)
        # What is said while nobody listens is not for whoever listens later.
        wire.setsockopt(zmq.IMMEDIATE, 1)
        wire.setsockopt(zmq.RECONNECT_IVL, 500)
        self._monitor = wire.get_monitor_socket(_FAILED)
        self._relay = Relay(self._context, wire, self._take)
        self._engines: dict[int, EngineHandle] = {}
        self._exits: dict[int, str] = {}
        self._joined = self._over = False
        self._wrong = 0
        self._heard = self._began = time.monotonic()
        self._said = 0.0
        wire.connect(self._address)

    def run(self, stop: Stop) -> None:
        """Until it is over, or somebody asks to stop. Raises `ConfigError` when the server rejects us for good."""
        logger.info("connecting to %s, for engines %d to %d", self._address, self._first, self._first + self._count - 1)
        while not self._over and not stop.asked:
            self._relay.step()
            self._report_exits()
            self._watch()
        if self._joined and not self._over:
            self._relay.send(b"", Leave())

    def close(self) -> None:
        """End all engines."""
        for engine in self._engines.values():
            engine.end(at_once=True)
        self._wire.disable_monitor()
        self._monitor.close(linger=0)
        self._relay.end()
        self._context.term()
        for each in self._folder.iterdir():
            shutil.rmtree(each, ignore_errors=True)

    def _watch(self) -> None:
        """Say that we are there, and miss the server when it is not."""
        now = time.monotonic()
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor)["event"]
            # A refusal of our key is final: nobody dials again by himself after it.
            self._wrong += _WRONG_HANDSHAKES if event == zmq.EVENT_HANDSHAKE_FAILED_AUTH else 1
            if self._wrong >= _WRONG_HANDSHAKES and not self._joined:
                raise ConfigError(
                    f"{self._address} rejects the secret or the keys of this host (or is not a jaxllm server): see "
                    "docs/data_parallel.md"
                )
        if now - self._said > (ALIVE_SECONDS if self._joined else _DIAL_SECONDS):
            self._said = now
            self._relay.send(b"", Alive() if self._joined else self._join())
        if self._joined and now - self._heard > SILENCE_SECONDS:
            logger.error("the server has sent nothing for %g s: stopping its engines on this host", SILENCE_SECONDS)
            self._over = True

    def _join(self) -> Join:
        folder = str(self._folder)
        return Join(__version__, socket.gethostname(), self._first, self._count, folder, self._config)

    def _take(self, peer: bytes, data: bytes | None, connection: int) -> None:
        del peer, connection
        try:
            message: Any = msgspec.msgpack.decode(data or b"", type=ToHost)
        except msgspec.DecodeError:
            raise ConfigError(f"{self._address} is not a jaxllm server of version {__version__}") from None
        self._heard = time.monotonic()
        match message:
            case Welcome():
                self._joined = True
                logger.info("joined %s", self._address)
            case Refused(kind, reason):
                self._take_refusal(kind, reason)
            case Taken():
                self._relay.count_taken(b"", message)
            case Start(channel, number):
                self._start(channel, number)
            case Open(channel):
                self._open(channel)
            case Close(channel):
                self._relay.close(b"", channel)
                shutil.rmtree(self._folder / str(channel), ignore_errors=True)
            case End(channel, at_once) if channel in self._engines:
                self._end_engine(channel, at_once=at_once)

    def _take_refusal(self, kind: str, reason: str) -> None:
        late = time.monotonic() - self._began > _LATER_SECONDS
        if kind == "for good" or (kind == "later" and late):
            raise ConfigError(f"{self._address} rejects this host: {reason}")
        if kind == "join again" and self._joined:
            logger.error("%s: stopping the engines here and reconnecting this host", reason)
            self._over = True

    def _open(self, channel: int) -> str:
        folder = self._folder / str(channel)
        folder.mkdir(mode=0o700, exist_ok=True)
        self._relay.open(b"", channel, str(folder), bind=True)
        return str(folder)

    def _start(self, channel: int, number: int) -> None:
        folder = self._open(channel)
        try:
            launch = self._launch_of(number - self._first)
        except ConfigError as error:
            self._exits[channel] = str(error)
            return
        self._engines[channel] = launch(folder, self._tell_exit(channel))
        logger.info("starting engine %d", number)

    def _tell_exit(self, channel: int) -> Callable[[str], None]:
        def exited(reason: str) -> None:
            self._relay.call(partial(self._exits.__setitem__, channel, reason))

        return exited

    def _end_engine(self, channel: int, *, at_once: bool) -> None:
        engine = self._engines[channel]
        if at_once:
            engine.kill("the server asked for it")
            return
        # Waits for the process, while others are to be served.

        threading.Thread(target=engine.end, name="engine-end", daemon=True).start()

    def _report_exits(self) -> None:
        """Engines that have ended, after the last that they said."""
        for channel, reason in list(self._exits.items()):
            pipe = self._relay.pipes.get((b"", channel))
            if pipe is not None:
                self._relay.read(pipe)
            del self._exits[channel]
            engine = self._engines.pop(channel, None)
            if engine is not None:
                engine.end()  # there is nothing left to wait for
            self._relay.send(b"", Exited(channel, reason))
