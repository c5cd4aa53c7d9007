"""The head's records of a host that has joined, and of an engine there."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol

from jaxllm.serving.ipc.client.process import END_SECONDS
from jaxllm.serving.ipc.remote.messages import Join
from jaxllm.serving.ipc.remote.relay import Relay


class Places(Protocol):
    """Whoever knows the hosts; all but `relay` belongs to the relay's thread. A protocol, since `Head` imports this."""

    relay: Relay

    def place(self, engine: "HostEngine") -> None:
        """Start an engine where there is a place for it, or have it wait for one."""

    def open_channel(self, engine: "HostEngine", folder: str) -> str:
        """A channel for one more client; the folder of its sockets on the engine's host, empty if that is gone."""

    def end_engine(self, engine: "HostEngine", *, at_once: bool) -> None:
        """End an engine, or stop waiting for its host."""


@dataclass(eq=False)
class Host:
    """One that has joined."""

    peer: bytes
    join: Join
    connection: int
    """The descriptor of its socket."""
    deadline: float
    engines: dict[int, "HostEngine"] = field(default_factory=dict)
    """Those that it runs, by the channel with which they were started."""

    @property
    def ranks(self) -> range:
        """The engines that it has places for."""
        return range(self.join.first, self.join.first + self.join.count)


class HostEngine:
    """An engine on another host, in place of a child process (see `EngineProcess`). Waits for a host with its rank."""

    def __init__(self, head: Places, number: int, folder: str, on_exit: Callable[[str], None]) -> None:
        """`on_exit` is called once, with what can be said of the end."""
        self.number, self.folder = number, folder
        self.host: Host | None = None
        self.channel = 0
        self.channels: dict[str, int] = {}
        """Channels of all its clients, by their folders here."""
        self._head, self._on_exit = head, on_exit
        self._over = threading.Event()
        head.relay.call(partial(head.place, self))

    @property
    def pid(self) -> int:
        """Process id: of no process on this machine."""
        return 0

    def reach(self, folder: str) -> str:
        """Where on its host the sockets of one more client are, which lie in this folder here."""
        found: list[str] = []
        done = threading.Event()

        def open_channel() -> None:
            found.append(self._head.open_channel(self, folder))
            done.set()

        self._head.relay.call(open_channel)
        done.wait(END_SECONDS)
        return found[0] if found else ""

    def end(self, *, at_once: bool = False) -> None:
        """Have it ended, and wait for that. May be called again."""
        self._head.relay.call(partial(self._head.end_engine, self, at_once=at_once))
        if not self._over.wait(END_SECONDS):
            self._head.relay.call(partial(self._head.end_engine, self, at_once=True))

    @property
    def is_stopped(self) -> bool:
        """Not seen from here."""
        return False

    def kill(self, reason: str) -> None:
        """Have it killed; its host says when that is done."""
        del reason
        self._head.relay.call(partial(self._head.end_engine, self, at_once=True))

    def take_end(self, reason: str) -> None:
        """It has ended. Only the first reason counts."""
        if not self._over.is_set():
            self._over.set()
            self._on_exit(reason)
