"""Request ids: from the client or new, in the log, and back in the response."""

import re
import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jaxllm.serving.telemetry.log_format import current_request_id

HEADER = "X-Request-Id"

_ACCEPTED = re.compile(r"[\x21-\x7e]{1,256}")


class RequestIds:
    """Puts `request_id` into the scope, and into log lines: the client's, if it sends a sensible one.

    The response has it when the client sent it, and with `always`.
    """

    def __init__(self, app: ASGIApp, *, always: bool = False) -> None:
        self._app = app
        self._always = always

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(HEADER, "")
        sensible = _ACCEPTED.fullmatch(given) is not None
        scope["request_id"] = request_id = given if sensible else uuid.uuid4().hex

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[HEADER] = request_id
            await send(message)

        token = current_request_id.set(request_id)
        try:
            await self._app(scope, receive, send_with_id if sensible or self._always else send)
        finally:
            current_request_id.reset(token)
