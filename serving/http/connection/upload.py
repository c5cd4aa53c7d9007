"""The body of a request on its way in: how much of it there is, and how much is held."""

from collections.abc import Mapping
from typing import Any

from jaxllm.serving.http.connection.connections import Connections

UPLOAD = "jaxllm.upload"
"""Name in the scope's `extensions`."""


class Upload:
    """Counts the bytes of one body, for as long as they are held, among those of all."""

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
