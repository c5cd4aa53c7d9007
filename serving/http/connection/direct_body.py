"""Writing to a connection at once, without a task: an extension of ASGI between our HTTP protocol and our streams."""

from typing import Any

from starlette.types import Scope
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

EXTENSION = "jaxllm.direct_body"
"""Name in the scope's `extensions`."""


class DirectBody:
    """Writes parts of a chunked response's body as `send` would, in a function that never waits.

    For a response whose headers are sent and say no length. What middleware does to `send` does not happen here.
    """

    __slots__ = ("_cycle", "_flow", "_write")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._flow = cycle.flow
        self._write = cycle.transport.write

    def ready(self) -> bool:
        """Whether the connection takes more: not when its reader is slow, and not when it is gone."""
        return not (self._flow.write_paused or self._cycle.disconnected)

    def write(self, data: bytes) -> None:
        """Write a part of the body, which must not be empty: an empty one would end it."""
        # uvloop hands it to the system at once.
        self._write(b"%x\r\n%b\r\n" % (len(data), data))


def direct_body(scope: Scope) -> DirectBody | None:
    """That of a request, if the server offers one."""
    extensions: dict[str, Any] = scope.get("extensions") or {}
    return extensions.get(EXTENSION)
