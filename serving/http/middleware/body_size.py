"""The limit on the size of bodies."""

from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jaxllm.serving.http.errors import body_too_large
from jaxllm.serving.http.operation import response_to


class BodyLimit:
    """Refuses bodies of more than `limit` bytes, declared or not; `uploads` has others by path, with their flags.

    A declared size is rejected before the body is read. Otherwise the reader of the body gets the error.
    """

    def __init__(self, app: ASGIApp, limit: int, uploads: Mapping[str, tuple[int, str]]) -> None:
        self._app = app
        self._limit = limit
        self._uploads = uploads

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or answer with an error."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        upload = self._uploads.get(scope["path"].removeprefix(scope.get("root_path", "")))
        limit, flag = (self._limit, "--max-body-size") if upload is None else upload
        declared = Headers(scope=scope).get("content-length", "")
        if declared.isdecimal() and int(declared) > limit:
            await response_to(body_too_large(limit, flag), Request(scope))(scope, receive, send)
            return
        received = 0

        async def receive_limited() -> Message:
            nonlocal received
            message = await receive()
            received += len(message.get("body", b""))
            if received > limit:
                raise body_too_large(limit, flag)
            return message

        await self._app(scope, receive_limited, send)
