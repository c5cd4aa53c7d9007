"""Bodies and queries of requests, read.

Work in proportion to a body is done at once where the body is small, else in a thread, so that nobody's stream waits.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from starlette.requests import Request

from jaxllm.serving.http.body.base import Body
from jaxllm.serving.http.body.decode import decode_body, decode_query
from jaxllm.serving.http.body.ignored_fields import FieldPolicy, ignored_by
from jaxllm.serving.http.body.json_size import json_size
from jaxllm.serving.http.connection.connections import upload_of
from jaxllm.serving.http.errors import BodyError, not_json
from jaxllm.serving.http.limits import JsonLimits

_LARGE = 2**16
"""Bytes of a body beyond which it is taken elsewhere: about a millisecond of work."""
_MARK = "jaxllm.large_body"
"""In the scope of a request whose body was large."""

Kind = TypeVar("Kind", bound=Body)
Result = TypeVar("Result")


class Bodies:
    """Reads bodies. Large ones have a thread: one at a time, so that memory and processor for them are bounded."""

    def __init__(self, limits: JsonLimits, fields: FieldPolicy) -> None:
        self._limits = limits
        self._fields = fields
        self._thread = ThreadPoolExecutor(1, "body")

    async def read(self, request: Request, kind: type[Kind]) -> Kind:
        """The body of a request, without what is ignored; its bytes are not held any longer.

        Raises `RequestError`s that name the field, and `HttpError`.
        """
        _check_content_type(request)
        parts = [part async for part in request.stream() if part]
        large = request.scope[_MARK] = sum(map(len, parts)) > _LARGE
        ignored = ignored_by(request.scope, self._fields)

        def read_large() -> Kind:
            body = b"".join(parts)
            parts.clear()
            self._check(body)
            return decode_body(body, kind, ignored)

        try:
            return await self.work(request, read_large) if large else decode_body(b"".join(parts), kind, ignored)
        finally:
            upload_of(request.scope).release()

    def read_query(self, request: Request, kind: type[Kind]) -> Kind:
        """The query parameters of a request. Raises `BodyError`."""
        return decode_query(request.query_params.multi_items(), kind, ignored_by(request.scope, self._fields))

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


def _check_content_type(request: Request) -> None:
    content_type = request.headers.get("content-type")
    if content_type is not None:
        media_type = content_type.partition(";")[0].strip().lower()
        if media_type != "application/json" and not media_type.endswith("+json"):
            raise not_json(content_type)
    elif "origin" in request.headers:
        # A browser sends this from any web page without asking the server whether the page may.
        raise not_json("")
