"""The limit on the size of bodies."""

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jaxllm.serving.openai.errors import body_too_large, response_to


class BodyLimit:
    """Refuses bodies of more than `limit` bytes, declared or not.

    A declared size is refused before the body is read. Otherwise the reader of the body gets the error.
    """

    def __init__(self, app: ASGIApp, limit: int) -> None:
        self._app = app
        self._limit = limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer with an error."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdecimal() and int(declared) > self._limit:
            await response_to(body_too_large(self._limit), Request(scope))(scope, receive, send)
            return
        received = 0

        async def receive_limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > self._limit:
                raise body_too_large(self._limit)
            return message

        await self._app(scope, receive_limited, send)
