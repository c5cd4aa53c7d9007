"""Calls of an ASGI application in the same process, without a socket."""

import asyncio
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message


@dataclass(frozen=True)
class RouteAnswer:
    """A response: its status, its body, and in how many seconds to try again, where it says so."""

    status: int
    body: bytes
    retry_after: float | None = None


async def post(app: ASGIApp, path: str, body: bytes, request_id: str, /, **more: Any) -> RouteAnswer:
    """Send a JSON body to a path of `app` and wait for the whole answer; the scope has `more`.

    Raises what the application raises, unless it has answered by then.
    """
    received = [{"type": "http.request", "body": body, "more_body": False}]
    status, parts, retry_after = 0, list[bytes](), None

    async def receive() -> Message:
        if received:
            return received.pop()
        # The client stays until it has its answer, and then nobody listens any more.
        await asyncio.Event().wait()
        raise AssertionError("nothing sets the event")

    async def send(message: Message) -> None:
        nonlocal status, retry_after
        if message["type"] == "http.response.start":
            status = message["status"]
            seconds = Headers(raw=message.get("headers", [])).get("retry-after", "")
            retry_after = float(seconds) if seconds.isdecimal() else None
        elif message["type"] == "http.response.body":
            parts.append(message.get("body", b""))

    try:
        await app({**_scope(path, len(body), request_id), "request_id": request_id, **more}, receive, send)
    except Exception:
        if not status:
            raise
    return RouteAnswer(status, b"".join(parts), retry_after)


def _scope(path: str, length: int, request_id: str) -> dict[str, Any]:
    headers = {"content-type": "application/json", "content-length": str(length), "x-request-id": request_id}
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "client": None,
        "server": ("run-batch", 0),
    }
