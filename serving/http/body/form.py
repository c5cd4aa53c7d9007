"""Forms with a file (multipart/form-data), taken apart as they come."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, Any

from python_multipart import MultipartParser
from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import parse_options_header
from starlette.requests import Request

from jaxllm.errors import RequestError, shortened
from jaxllm.serving.http.errors import HttpError

_MOST_HEADER_BYTES = 4096


@dataclass(frozen=True)
class FormLimits:
    """How many fields a form may have, and how long each may be in bytes, but for the file."""

    fields: int = 16
    field_bytes: int = 1024


@dataclass
class Form:
    """The contents of a form: its fields, and the file with its name."""

    items: list[tuple[str, str]] = field(default_factory=list)
    """Names and values, in their order."""
    filename: str | None = None
    num_bytes: int = 0
    """Of the body."""

    @property
    def fields(self) -> dict[str, str]:
        """The last value of each name."""
        return dict(self.items)


@dataclass
class _Part:
    """The part of the form that is being read."""

    header: bytes = b""
    value: bytes = b""
    headers: dict[str, bytes] = field(default_factory=dict)
    name: str = ""
    is_file: bool = False


async def receive_form(
    request: Request,
    file: IO[bytes],
    expected: str,
    *,
    limits: FormLimits = FormLimits(),
    take: Callable[[int], None] = lambda size: None,
    taken: Callable[[], None] = lambda: None,
) -> Form:
    """Read a form whose field `file` goes to a file.

    `expected` says in an error what a form has. `take` is asked before so many bytes are parsed, and `taken` is called
    when they are; parsing and writing are done in threads. Raises `RequestError`, `HttpError`, and what `take` raises.
    """
    kind, options = parse_options_header(request.headers.get("content-type", ""))
    boundary = options.get(b"boundary")
    if kind != b"multipart/form-data" or not boundary:
        message = f"send a form (Content-Type: multipart/form-data) with {expected}"
        raise HttpError(415, message, code="unsupported_media_type")
    reader = _Reader(boundary, file, limits)
    async for data in request.stream():
        # The form around the file counts too: it is little.
        take(len(data))
        reader.form.num_bytes += len(data)
        if data:
            await asyncio.to_thread(reader.take, data)
            taken()
    await asyncio.to_thread(reader.end)
    if reader.form.filename is None:
        raise RequestError("file: this field is required", "file")
    return reader.form


class _Reader:
    """Takes a form apart; the callbacks are python-multipart's."""

    def __init__(self, boundary: bytes, file: IO[bytes], limits: FormLimits) -> None:
        self.form = Form()
        self._file, self._limits = file, limits
        self._part = _Part()
        self._num_parts = 0
        callbacks: Any = {
            "on_part_begin": self._begin,
            "on_header_field": self._header_field,
            "on_header_value": self._header_value,
            "on_header_end": self._header_end,
            "on_headers_finished": self._headers_finished,
            "on_part_data": self._data,
            "on_part_end": self._end,
        }
        self._complete = False
        callbacks["on_end"] = self._finish
        self._parser = MultipartParser(boundary, callbacks)

    def take(self, data: bytes) -> None:
        """Read more of the form."""
        try:
            self._parser.write(data)
        except MultipartParseError as error:
            raise RequestError(f"the form is malformed: {shortened(error)}") from None

    def end(self) -> None:
        """The body is over. Raises `RequestError` if the form is not."""
        if not self._complete:
            raise RequestError("the form is truncated")

    def _finish(self) -> None:
        self._complete = True

    def _begin(self) -> None:
        self._part = _Part()

    def _header_field(self, data: bytes, start: int, end: int) -> None:
        self._part.header += data[start:end]
        self._check_header()

    def _header_value(self, data: bytes, start: int, end: int) -> None:
        self._part.value += data[start:end]
        self._check_header()

    def _check_header(self) -> None:
        if len(self._part.header) + len(self._part.value) > _MOST_HEADER_BYTES:
            raise RequestError("the form is malformed: a header is too long")

    def _header_end(self) -> None:
        part = self._part
        if part.header.lower() == b"content-disposition":
            part.headers["content-disposition"] = part.value
        part.header = part.value = b""

    def _headers_finished(self) -> None:
        part = self._part
        _, options = parse_options_header(part.headers.get("content-disposition", b""))
        part.name = options.get(b"name", b"").decode(errors="replace")
        filename = options.get(b"filename")
        part.is_file = part.name == "file" and filename is not None
        if part.is_file:
            if self.form.filename is not None:
                raise RequestError("file: only one file is allowed per request", "file")
            self.form.filename = (filename or b"").decode(errors="replace")[:256] or "file"
        self._num_parts += 1
        if self._num_parts > self._limits.fields:
            raise RequestError(f"the form has more than {self._limits.fields} fields")

    def _data(self, data: bytes, start: int, end: int) -> None:
        part = self._part
        if part.is_file:
            self._file.write(data[start:end])
            return
        part.value += data[start:end]
        most = self._limits.field_bytes
        if len(part.value) > most:
            raise RequestError(f"{part.name or 'a field'}: more than {most} bytes", part.name or None)

    def _end(self) -> None:
        part = self._part
        if not part.is_file:
            self.form.items.append((part.name, part.value.decode(errors="replace")))
