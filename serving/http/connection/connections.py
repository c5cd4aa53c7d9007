"""The limits of connections: how many there may be, what they hold without a whole request, and how long they take.

Times are as nginx and Apache have them: for headers, for a body, and for reading the response.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from typing import Any, Protocol

from jaxllm.serving.http.limits import HttpLimits

UPLOAD = "jaxllm.upload"
"""Name in the scope's `extensions`."""
LEAVING_SECONDS = 5.0
"""How long connections may be silent, at most, that another server is to have."""
_INTERVAL = 1.0
"""Seconds between two looks at every connection."""
_SLICE = 256
"""Connections that are looked at before others may work."""
_SPARE = 16
"""When bodies have to go, this part of their room is made free at once: finding the largest takes a while."""


class Connection(Protocol):
    """What is asked of a connection. A protocol, since `LimitedProtocol`, the one there is, imports this module."""

    address: str | None
    """Whom it counts for; None on a Unix socket."""

    @property
    def unfinished_bytes(self) -> int:
        """Held of the body that it is sending."""

    def check(self, now: float) -> None:
        """Close it if its time is over."""

    def drop(self, reason: str) -> None:
        """Close it to make room for others."""


@dataclass(slots=True)
class _ConnectionGroup:
    """Connections; those without a whole request stand in `waiting`, the one that began to wait first at the front."""

    count: int = 0
    waiting: "OrderedDict[Connection, None]" = field(default_factory=OrderedDict)


class Connections:
    """The connections of one server.

    Where there is no room for a new one, the connection that has waited longest for a whole request goes: a client
    that holds back its request cannot keep others out. Likewise for bodies, where the largest unfinished one goes.
    """

    def __init__(self, limits: HttpLimits) -> None:
        self.limits = limits
        self.are_leaving = False
        """Whether each connection takes one more request at most: another server has the next ones."""
        self.none_open = asyncio.Event()
        """Set while there is no connection."""
        self.none_open.set()
        self.body_bytes = 0
        """Bytes of all bodies that are being received, or not yet decoded."""
        self._all = _ConnectionGroup()
        self._by_address: dict[str, _ConnectionGroup] = {}
        self._counted: set[Connection] = set()
        self._open: set[Connection] = set()

    @property
    def idle_seconds(self) -> float:
        """How long one may be silent between two requests."""
        return min(LEAVING_SECONDS, self.limits.idle_seconds) if self.are_leaving else self.limits.idle_seconds

    def __len__(self) -> int:
        """Those that count."""
        return self._all.count

    def admit(self, connection: Connection) -> bool:
        """Count a new connection, which waits for its first request. False: there is no room for it."""
        self._open.add(connection)
        self.none_open.clear()
        groups = self._groups(connection)
        limits = (self.limits.connections, self.limits.connections_per_address)
        for group, limit in reversed([*zip(groups, limits, strict=False)]):
            if 0 < limit <= group.count:
                if not group.waiting:
                    return False
                next(iter(group.waiting)).drop("the server has too many connections")
        self._counted.add(connection)
        for group in groups:
            group.count += 1
            group.waiting[connection] = None
        return True

    def leave(self, connection: Connection) -> None:
        """Count a connection no longer, because it ends."""
        if connection not in self._counted:
            return
        self._counted.discard(connection)
        for group in self._groups(connection):
            group.count -= 1
            group.waiting.pop(connection, None)
        if connection.address is not None and not self._by_address[connection.address].count:
            del self._by_address[connection.address]

    def remove(self, connection: Connection) -> None:
        """Forget a connection that has ended."""
        self.leave(connection)
        self._open.discard(connection)
        if not self._open:
            self.none_open.set()

    def wait(self, connection: Connection, *, begins: bool) -> None:
        """A connection begins to wait for a whole request, or has one."""
        if connection not in self._counted:
            return
        for group in self._groups(connection):
            group.waiting.pop(connection, None)
            if begins:
                group.waiting[connection] = None

    def hold(self, size: int) -> bool:
        """Count more bytes of a body. False: there is no room, also without the largest of the unfinished ones."""
        self.body_bytes += size
        limit = self.limits.buffered_body_bytes
        if not 0 < limit < self.body_bytes:
            return True
        for largest in sorted(self._all.waiting, key=lambda each: -each.unfinished_bytes):
            if self.body_bytes <= limit - limit // _SPARE or not largest.unfinished_bytes:
                break
            largest.drop("the server has too many unfinished request bodies")
        return self.body_bytes <= limit

    def release(self, size: int) -> None:
        """These bytes are held no longer."""
        self.body_bytes -= size

    async def watch(self) -> None:
        """Close connections whose time is over; until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(_INTERVAL)
            for index, connection in enumerate(list(self._open), 1):
                connection.check(loop.time())
                if index % _SLICE == 0:
                    await asyncio.sleep(0)

    def _groups(self, connection: Connection) -> list[_ConnectionGroup]:
        if connection.address is None:
            return [self._all]
        return [self._all, self._by_address.setdefault(connection.address, _ConnectionGroup())]


class Upload:
    """A body on its way in: counts its bytes, for as long as they are held, among those of all."""

    __slots__ = ("_connections", "held", "received", "trailers")

    def __init__(self, connections: Connections | None) -> None:
        self._connections = connections
        self.received = 0
        self.held = 0
        self.trailers = 0

    def take(self, size: int) -> bool:
        """Hold more bytes. False: there is no room for them."""
        assert self._connections is not None
        self.received += size
        self.held += size
        return self._connections.hold(size)

    def skip(self, size: int) -> int:
        """Count bytes that nobody needs; how many there were in all."""
        self.received += size
        return self.received

    def release(self) -> None:
        """Hold nothing any longer: the body is decoded, or the request is over."""
        if self._connections is not None and self.held:
            self._connections.release(self.held)
        self.held = 0


def upload_of(scope: Mapping[str, Any]) -> Upload:
    """The upload of a request; one that counts nothing where the server has none."""
    found = (scope.get("extensions") or {}).get(UPLOAD)
    return found if isinstance(found, Upload) else Upload(None)


def counted_address(client: tuple[str, int] | None) -> str | None:
    """Whom a connection counts for: an address, of IPv6 the network of 64 bits that one subscriber has."""
    if client is None:
        return None
    try:
        address = ip_address(client[0].partition("%")[0])
    except ValueError:
        return client[0]
    if not isinstance(address, IPv6Address):
        return client[0]
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return address.packed[:8].hex()


@dataclass(frozen=True)
class Overdue:
    """A client took too long. What to tell it, nothing where it began nothing; with `aborts`, it does not read."""

    message: str = ""
    aborts: bool = False


class RequestTimer:
    """The clock of one connection. It is looked at every second or so; in between, it only takes notes."""

    __slots__ = ("_begun", "_heard", "_heard_bytes", "_in_body", "_limits", "_looked", "_since", "_unsent",
                 "_unsent_since", "_waited", "whole")  # fmt: skip

    def __init__(self, limits: HttpLimits, now: float) -> None:
        self._limits = limits
        self.whole = False
        """Whether the last request was received to its end."""
        self._in_body = False
        self._begun = False
        """Whether anything of the request has arrived."""
        self._since = self._heard = self._looked = self._unsent_since = now
        self._waited = 0.0
        """Seconds that the body takes, without those in which the server did not want it."""
        self._heard_bytes = 0
        self._unsent = 0

    def heard(self, now: float, size: int) -> None:
        """Bytes arrived."""
        self._heard = now
        self._heard_bytes += size

    def begin(self) -> None:
        """A request begins in the bytes just heard; the first one has its time from the connection's begin."""
        if self.whole:
            self._since = self._heard
        self._begun, self.whole, self._in_body = True, False, False

    def headers_complete(self) -> None:
        """The body begins."""
        self._in_body, self._waited, self._heard_bytes = True, 0.0, 0

    def message_complete(self) -> None:
        """The request is there."""
        self.whole, self._in_body, self._since = True, False, self._heard

    def answered(self, now: float) -> None:
        """The response is written; the next request may come."""
        self._since = now

    def overdue(self, now: float, unsent: int, *, answering: bool, paused: bool, idle_seconds: float) -> Overdue | None:
        """Whether the client takes too long. `unsent` bytes wait for it.

        `answering`: a response is being made; `paused`: nothing is read from the client for now. Between two requests
        it may take `idle_seconds`.
        """
        passed, self._looked = now - self._looked, now
        if not unsent or unsent < self._unsent:
            self._unsent_since = now
        self._unsent = unsent
        if 0 < self._limits.send_seconds < now - self._unsent_since:
            return Overdue(aborts=True)
        if unsent or paused or (answering and not self._in_body):
            self._heard = self._since = now
            return None
        if self._in_body:
            return self._slow_body(now, passed)
        limit = idle_seconds if self.whole else self._limits.headers_seconds
        if 0 < limit < now - self._since:
            message = f"the request's headers took more than {limit:g} s (--timeout-headers)"
            return Overdue(message if self._begun and not self.whole else "")
        return None

    def _slow_body(self, now: float, passed: float) -> Overdue | None:
        self._waited += passed
        limit, rate = self._limits.body_seconds, self._limits.body_rate
        if 0 < limit < now - self._heard:
            return Overdue(f"no data of the body arrived for {limit:g} s (--timeout-body)")
        if rate and self._waited > limit + self._heard_bytes / rate:
            return Overdue(f"the body arrived at less than {rate} bytes per second (--min-body-rate)")
        return None
