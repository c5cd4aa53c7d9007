"""Bodies and queries of requests, read.

Work in proportion to a body is done at once where the body is small, else in a thread, so that nobody's stream waits.
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import numpy.typing as npt
from starlette.requests import Request

from jaxllm.serving.http.body.base import Body
from jaxllm.serving.http.body.decode import decode_body, decode_query
from jaxllm.serving.http.body.ignored_fields import FieldPolicy, ignored_by
from jaxllm.serving.http.body.settle import settle
from jaxllm.serving.http.connection.connections import upload_of
from jaxllm.serving.http.deadline import shorten_deadline
from jaxllm.serving.http.errors import BodyError, not_json
from jaxllm.serving.http.limits import JsonLimits

_LARGE = 2**16
"""Bytes of a body beyond which it is taken elsewhere: about a millisecond of work."""
_MARK = "jaxllm.large_body"
"""In the scope of a request whose body was large."""

ResolveModel = Callable[[str], Awaitable[None]]
"""Loads what a request names as its model, if that is needed and allowed."""

Kind = TypeVar("Kind", bound=Body)
Result = TypeVar("Result")


class Bodies:
    """Reads bodies. Large ones have a thread: one at a time, so that memory and processor for them are bounded."""

    def __init__(self, limits: JsonLimits, fields: FieldPolicy, resolve: ResolveModel | None = None) -> None:
        """`resolve` is called with the `model` of a body, before anything else looks at the body."""
        self._limits = limits
        self._fields = fields
        self._resolve = resolve
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
            body = await self.work(request, read_large) if large else decode_body(b"".join(parts), kind, ignored)
        finally:
            upload_of(request.scope).release()
        shorten_deadline(request.scope, body)
        model = getattr(body, "model", None)
        if self._resolve is not None and isinstance(model, str):
            await self._resolve(model)
        return body

    def read_query(self, request: Request, kind: type[Kind]) -> Kind:
        """The query parameters of a request. Raises `BodyError`."""
        return decode_query(request.query_params.multi_items(), kind, ignored_by(request.scope, self._fields))

    async def read_items(self, request: Request, kind: type[Kind], items: Iterable[tuple[str, str]]) -> Kind:
        """The fields of a form, as `read` has those of a body. Raises as it does."""
        ignored = ignored_by(request.scope, self._fields)
        body = decode_query(items, kind, ignored)
        settle(body, "", ignored)
        shorten_deadline(request.scope, body)
        model = getattr(body, "model", None)
        if self._resolve is not None and isinstance(model, str):
            await self._resolve(model)
        return body

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
                    f"the body contains {found} {what}, but at most {most} are allowed; split it into several requests",
                    None,
                    "too_large",
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


_BLOCK = 2**18
_QUOTE, _BACKSLASH, _COMMA = b'"\\,'
_OPENING = b"[{"

_Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class JsonSize:
    """Objects and lists of a JSON text, and commas between values, none of them inside strings."""

    containers: int
    commas: int


def json_size(text: bytes) -> JsonSize:
    """Count what a JSON text consists of; for what is no JSON, some number. Takes about 3 ns for each byte."""
    containers = commas = 0
    # Whether the block begins inside a string, and after an odd number of backslashes.
    inside = escaped = False
    everything = np.frombuffer(text, np.uint8)
    for start in range(0, len(text), _BLOCK):
        block = everything[start : start + _BLOCK]
        quotes = block == _QUOTE
        behind, escaped = _escaped(block == _BACKSLASH, escaped)
        if behind is not None:
            quotes &= ~behind
        outside = np.logical_xor.accumulate(quotes) == inside
        inside ^= bool(np.count_nonzero(quotes) % 2)
        containers += int(np.count_nonzero(outside & ((block | 0x20) == 0x7B)))
        commas += int(np.count_nonzero(outside & (block == _COMMA)))
    return JsonSize(containers, commas)


def _escaped(backslashes: _Flags, first: bool) -> tuple[_Flags | None, bool]:
    """Which bytes stand after an odd number of backslashes, None if there are none; and whether the next one does.

    `first`: whether the first one does.
    """
    if not first and not backslashes.any():
        return None, False
    # The place after the last byte that is none; a run of backslashes begins there.
    places = np.arange(1, len(backslashes) + 1, dtype=np.int32)
    begins = np.maximum.accumulate(np.where(backslashes, np.int32(0), places))
    # The escaped first byte belongs to the run before, so a run from the beginning counts from one byte later.
    if first:
        begins = np.maximum(begins, 1)
    odd = (places - begins) % 2 == 1
    behind = np.empty_like(odd)
    behind[0] = first
    behind[1:] = odd[:-1]
    return behind, bool(odd[-1])
