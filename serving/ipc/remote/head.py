"""The head: hosts join it over TCP, and it has them start engines, as if these were child processes."""

import itertools
import logging
import threading
import time
from collections.abc import Callable
from dataclasses import fields
from types import TracebackType
from typing import Any, Self

import msgspec
import zmq
from zmq.auth.thread import ThreadAuthenticator
from zmq.utils.monitor import recv_monitor_message

from jaxllm.config import MAX_ENGINES, EngineConfig
from jaxllm.errors import ConfigError
from jaxllm.serving.ipc.client.connection import Launch
from jaxllm.serving.ipc.client.process import END_SECONDS
from jaxllm.serving.ipc.remote.hosted import Host, HostEngine
from jaxllm.serving.ipc.remote.messages import (
    ALIVE_SECONDS,
    SILENCE_SECONDS,
    Alive,
    Close,
    End,
    Exited,
    FromHost,
    Join,
    Leave,
    Open,
    Refused,
    Start,
    Taken,
    Welcome,
)
from jaxllm.serving.ipc.remote.relay import Relay
from jaxllm.serving.ipc.remote.security import Keys, address_of, protect
from jaxllm.version import __version__

logger = logging.getLogger(__name__)

_COMPLAINT_SECONDS = 60.0
"""At most one line of each kind about strangers in so long."""

_OWN = frozenset({
    "data_parallel_size", "data_parallel_size_local", "data_parallel_start_rank", "data_parallel_address",
    "data_parallel_rpc_port", "data_parallel_routing", "compilation_cache_dir", "executables", "compile_workers",
    "profiler_dir",
})  # fmt: skip
"""Options that may differ: they are about a host, or about the server alone."""


class Head:
    """Listens for hosts, in a thread. As a context manager it ends, and hosts end their engines then."""

    def __init__(self, config: EngineConfig, keys: Keys | None) -> None:
        """Raises `ConfigError` when it cannot listen."""
        self._config = config
        self._hosts: dict[bytes, Host] = {}
        self._waiting: list[HostEngine] = []
        self._numbers = itertools.count(1)
        self._ending = False
        self._complained: dict[str, float] = {}
        self._said_alive = 0.0
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._context = context
        self._authenticator: Any = None
        if keys is not None:
            self._authenticator = ThreadAuthenticator(context, log=logging.getLogger("jaxllm.zap"))
            self._authenticator.start()
            self._authenticator.configure_curve_callback("*", credentials_provider=keys)
        wire = context.socket(zmq.ROUTER)
        protect(wire, keys, is_head=True)
        events = zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_AUTH | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
        self._monitor = wire.get_monitor_socket(events | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
        self.relay = Relay(context, wire, self._take)
        parallel = config.parallel
        self._wire = wire
        try:
            wire.bind(tcp(address_of(parallel.data_parallel_address), parallel.data_parallel_rpc_port))
        except zmq.ZMQError as error:
            self._close()
            where = f"{parallel.data_parallel_address}:{parallel.data_parallel_rpc_port}"
            raise ConfigError(f"cannot listen for engines on {where}: {error}; see --data-parallel-rpc-port") from None
        self._thread = threading.Thread(target=self._run, name="head", daemon=True)
        self._thread.start()

    def launch_of(self, number: int) -> Launch:
        """How the engine of this number, which has its place on another host, is started."""

        def launch(folder: str, on_exit: Callable[[str], None]) -> HostEngine:
            return HostEngine(self, number, folder, on_exit)

        return launch

    def has_place(self, number: int) -> bool:
        """Whether a host has joined that has a place for this engine."""
        return any(number in host.ranks for host in list(self._hosts.values()))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End. Engines that are left end by themselves when they miss us."""
        self.relay.call(self._end)
        self._thread.join(END_SECONDS)

    # In its thread

    def _run(self) -> None:
        try:
            while not self._ending:
                self.relay.step()
                self._watch()
        except Exception:
            logger.exception("the listener for other hosts failed")
        finally:
            for host in list(self._hosts.values()):
                self._drop(host, "the server no longer listens for other hosts")
            for engine in self._waiting:
                engine.take_end("the server no longer listens for other hosts")
            self._close()

    def _end(self) -> None:
        self._ending = True
        for host in self._hosts.values():
            self.relay.send(host.peer, Refused("join again", "the server has ended"))

    def _close(self) -> None:
        if self._authenticator is not None:
            self._authenticator.stop()
        self._wire.disable_monitor()
        self._monitor.close(linger=0)
        self.relay.end()
        self._context.term()

    def _watch(self) -> None:
        """Miss those who say nothing."""
        now = time.monotonic()
        while self._monitor.poll(0):
            event = recv_monitor_message(self._monitor)
            if event["event"] == zmq.EVENT_DISCONNECTED:
                self._miss(event["value"])
            else:
                self._complain(
                    "a connection failed to authenticate as a host of engines: it has a wrong secret, or is not jaxllm"
                )
        if now - self._said_alive > ALIVE_SECONDS:
            self._said_alive = now
            for host in self._hosts.values():
                self.relay.send(host.peer, Alive())
        for host in [each for each in self._hosts.values() if each.deadline < now]:
            self._drop(host, f"its host {host.join.host} disappeared")

    def _miss(self, connection: int) -> None:
        """A connection has broken: whose it was need not be waited for."""
        host = next((each for each in self._hosts.values() if each.connection == connection), None)
        if host is not None:
            self._drop(host, f"its host {host.join.host} disappeared: the connection was lost")

    def _complain(self, line: str, reason: str = "") -> None:
        now = time.monotonic()
        if now - self._complained.get(line, -_COMPLAINT_SECONDS) >= _COMPLAINT_SECONDS:
            self._complained[line] = now
            logger.warning("%s%s", line, reason)

    def _take(self, peer: bytes, data: bytes | None, connection: int) -> None:
        host = self._hosts.get(peer)
        try:
            message: Any = msgspec.msgpack.decode(data or b"", type=FromHost)
        except msgspec.DecodeError:
            self._refuse(peer, Refused("for good", _unlike(data or b"")))
            return
        if isinstance(message, Join):
            self._admit(peer, message, connection)
        elif host is None:
            if not isinstance(message, Leave):
                self._refuse(peer, Refused("join again", "the server no longer knows this host"))
        else:
            host.deadline = time.monotonic() + SILENCE_SECONDS
            self._take_known(host, message)

    def _take_known(self, host: Host, message: FromHost) -> None:
        match message:
            case Taken():
                self.relay.count_taken(host.peer, message)
            case Exited(channel, reason):
                engine = host.engines.pop(channel, None)
                if engine is not None:
                    self._forget(engine, host, reason)
            case Leave():
                self._drop(host, f"its host {host.join.host} has disconnected")

    def _admit(self, peer: bytes, join: Join, connection: int) -> None:
        wrong = mismatch(self._config, join)
        if wrong is not None:
            self._refuse(peer, Refused("for good", wrong))
            return
        ranks = range(join.first, join.first + join.count)
        others = [each for each in self._hosts.values() if set(each.ranks) & set(ranks)]
        if others:
            self._refuse(peer, Refused("later", f"{others[0].join.host} already has engines {_named(ranks)}"))
            return
        host = self._hosts[peer] = Host(peer, join, connection, time.monotonic() + SILENCE_SECONDS)
        self.relay.send(peer, Welcome())
        logger.info("host %s joined with engines %s", join.host, _named(ranks))
        mine = [engine for engine in self._waiting if engine.number in ranks]
        for engine in mine:
            self._waiting.remove(engine)
            self._start(engine, host)

    def _refuse(self, peer: bytes, refused: Refused) -> None:
        if refused.kind == "for good":
            self._complain("rejected a host of engines: ", refused.reason)
        self.relay.send(peer, refused)

    def place(self, engine: HostEngine) -> None:
        """Start an engine where there is a place for it, or have it wait for one."""
        host = next((each for each in self._hosts.values() if engine.number in each.ranks), None)
        if host is not None:
            self._start(engine, host)
            return
        logger.info("waiting for the host of engine %d (--headless --data-parallel-start-rank)", engine.number)
        self._waiting.append(engine)

    def _start(self, engine: HostEngine, host: Host) -> None:
        engine.host, engine.channel = host, next(self._numbers)
        engine.channels[engine.folder] = engine.channel
        host.engines[engine.channel] = engine
        self.relay.open(host.peer, engine.channel, engine.folder, bind=False)
        self.relay.send(host.peer, Start(engine.channel, engine.number))

    def open_channel(self, engine: HostEngine, folder: str) -> str:
        """A channel for one more client; the folder of its sockets on the engine's host, empty if that is gone."""
        host = engine.host
        if host is None:
            return ""
        if folder not in engine.channels:
            channel = engine.channels[folder] = next(self._numbers)
            self.relay.open(host.peer, channel, folder, bind=False)
            self.relay.send(host.peer, Open(channel))
        return f"{host.join.folder}/{engine.channels[folder]}"

    def end_engine(self, engine: HostEngine, *, at_once: bool) -> None:
        """End an engine, or stop waiting for its host."""
        if engine in self._waiting:
            self._waiting.remove(engine)
            engine.take_end("the server no longer waits for its host")
        elif engine.host is not None and engine.channel in engine.host.engines:
            self.relay.send(engine.host.peer, End(engine.channel, at_once))
        else:
            engine.take_end("it has ended")

    def _drop(self, host: Host, reason: str) -> None:
        """A host is gone, and its engines with it."""
        del self._hosts[host.peer]
        for engine in list(host.engines.values()):
            self._forget(engine, host, reason)
        self.relay.close_all(host.peer)
        if not self._ending:
            logger.error("lost host %s with engines %s", host.join.host, _named(host.ranks))
            self.relay.send(host.peer, Refused("join again", reason))

    def _forget(self, engine: HostEngine, host: Host, reason: str) -> None:
        for channel in engine.channels.values():
            pipe = self.relay.pipes.get((host.peer, channel))
            if pipe is not None:
                pipe.deliver()
            self.relay.close(host.peer, channel)
            self.relay.send(host.peer, Close(channel))
        engine.host = None
        engine.take_end(reason)


def tcp(address: str, port: int) -> str:
    """How ZeroMQ writes an address."""
    return f"tcp://[{address}]:{port}" if ":" in address else f"tcp://{address}:{port}"


def _named(ranks: range) -> str:
    return str(ranks.start) if len(ranks) == 1 else f"{ranks.start} to {ranks.stop - 1}"


def _unlike(data: bytes) -> str:
    """Why a message cannot be read: perhaps it is another version's."""
    try:
        found = msgspec.msgpack.decode(data)
        version = found.get("version") if isinstance(found, dict) else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        version = None
    if isinstance(version, str) and version != __version__:
        return f"this host has jaxllm {version[:40]}, but the server has {__version__}: install the same version"
    return "the message is not from a host of engines"


def mismatch(config: EngineConfig, join: Join) -> str | None:
    """Why this host may not join, naming what to change; None: it may."""
    if join.version != __version__:
        return f"this host has jaxllm {join.version[:40]}, but the server has {__version__}: install the same version"
    here, there = _options(config), _options(join.config)
    wrong = [name for name in here if here[name] != there[name]]
    if wrong:
        name = wrong[0]
        return f"{name} is {there[name]!r} on this host, and {here[name]!r} on the server: set the same value on both"
    local = config.parallel.data_parallel_size_local or 0
    if join.first < local or join.count < 1 or join.first + join.count > MAX_ENGINES:
        last = join.first + join.count - 1
        return f"engines {join.first} to {last}: other hosts must use {local} to {MAX_ENGINES - 1}"
    if len(join.folder) > 80 or not join.folder.startswith("/"):
        return "the path of the folder for sockets is too long: set TMPDIR to a shorter one"
    return None


def _options(config: EngineConfig) -> dict[str, Any]:
    sections = (getattr(config, item.name) for item in fields(config))
    found = {item.name: getattr(section, item.name) for section in sections for item in fields(section)}
    return {name: value for name, value in found.items() if name not in _OWN}
