"""Responses for clients of HTTP/1.0, which know no chunks."""

from typing import Any

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


def without_chunks(app: ASGI3Application, cycle: RequestResponseCycle) -> ASGI3Application:
    """`app` for such a client: a body whose length the headers do not say ends with the connection.

    `cycle` is uvicorn's, which would write chunks.
    """

    async def run(scope: Any, receive: Any, send: Any) -> None:
        unknown = False

        async def send_plain(message: Any) -> None:
            nonlocal unknown
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message.get("headers", ())}
                unknown = b"content-length" not in names
                if unknown:
                    cycle.chunked_encoding = False
            elif unknown:
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_plain)

    return run
