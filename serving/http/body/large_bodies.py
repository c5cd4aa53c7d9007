"""Work in proportion to a body: at once where the body is small, else in a thread, so that nobody's stream waits."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.requests import Request

from jaxllm.serving.http.body.json_size import json_size
from jaxllm.serving.http.connection.connections import upload_of
from jaxllm.serving.http.errors import BodyError
from jaxllm.serving.http.limits import JsonLimits

_LARGE = 2**16
"""Bytes of a body beyond which it is taken elsewhere: about a millisecond of work."""
_MARK = "jaxllm.large_body"
"""In the scope of a request whose body was large."""

Result = TypeVar("Result")


class LargeBodies:
    """The thread for large bodies: one at a time, so that their memory and their share of the processor are bounded."""

    def __init__(self, limits: JsonLimits) -> None:
        self._limits = limits
        self._thread = ThreadPoolExecutor(1, "body")

    async def read(self, request: Request, decode: Callable[[bytes], Result]) -> Result:
        """What `decode` makes of the body of a request, which is not held any longer. Raises `BodyError`."""
        parts = [part async for part in request.stream() if part]
        large = request.scope[_MARK] = sum(map(len, parts)) > _LARGE

        def read_large() -> Result:
            body = b"".join(parts)
            parts.clear()
            self._check(body)
            return decode(body)

        try:
            return await self.work(request, read_large) if large else decode(b"".join(parts))
        finally:
            upload_of(request.scope).release()

    async def work(self, request: Request, function: Callable[[], Result]) -> Result:
        """The result of a function whose work grows with the body of the request."""
        if not request.scope.get(_MARK):
            return function()
        return await asyncio.get_running_loop().run_in_executor(self._thread, function)

    def _check(self, body: bytes) -> None:
        """Raise `BodyError` for a text of too many parts: decoding it would hold up everything for long."""
        size, limits = json_size(body), self._limits
        for what, found, most in (
            ("objects and lists", size.containers, limits.containers),
            ("values", size.commas, limits.values),
        ):
            if found > most:
                raise BodyError(
                    f"the body has {found} {what}, at most {most} are allowed; send several requests", None, "too_large"
                )
