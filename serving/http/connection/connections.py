"""All connections of a server: how many there may be, and what those hold that have not sent a whole request."""

import asyncio
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import IPv6Address, ip_address
from typing import Any, Protocol

from jaxllm.serving.http.limits import HttpLimits

UPLOAD = "jaxllm.upload"
"""Name in the scope's `extensions`."""
_INTERVAL = 1.0
"""Seconds between two looks at every connection."""
_SLICE = 256
"""Connections that are looked at before others may work."""
_SPARE = 16
"""When bodies have to go, this part of their room is made free at once: finding the largest takes a while."""


class Connection(Protocol):
    """What is asked of a connection."""

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
        self.body_bytes = 0
        """Of all bodies that are being received, or not yet decoded."""
        self._all = _ConnectionGroup()
        self._by_address: dict[str, _ConnectionGroup] = {}
        self._counted: set[Connection] = set()
        self._open: set[Connection] = set()

    def __len__(self) -> int:
        """Those that count."""
        return self._all.count

    def admit(self, connection: Connection) -> bool:
        """Count a new connection, which waits for its first request. False: there is no room for it."""
        self._open.add(connection)
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
            largest.drop("the server holds too many unfinished bodies")
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
    """That of a request; one that counts nothing where the server has none."""
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
