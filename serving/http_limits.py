"""Uvicorn's fast protocol, with limits on headers, which it keeps only for its slower parser, and `DirectBody`."""

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from jaxllm.serving.direct_body import EXTENSION, DirectBody

_ANSWER = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"


def limited_protocol(max_bytes: int, max_headers: int) -> type[HttpToolsProtocol]:
    """Uvicorn's protocol that refuses requests (status 431) whose headers are larger or more than this.

    Applications find a `DirectBody` for the response in the scope's extensions.
    """

    class LimitedProtocol(HttpToolsProtocol):
        """Counts what comes before the body."""

        _in_headers = True
        _bytes = 0

        def on_message_begin(self) -> None:
            self._in_headers, self._bytes = True, 0
            super().on_message_begin()

        def on_url(self, url: bytes) -> None:
            self._bytes += len(url)
            super().on_url(url)

        def on_header(self, name: bytes, value: bytes) -> None:
            self._bytes += len(name) + len(value)
            super().on_header(name, value)
            if len(self.headers) > max_headers or self._bytes > max_bytes:
                # The parser stops, and uvicorn asks for an answer below.
                raise _TooLargeError

        def on_headers_complete(self) -> None:
            self._in_headers = False
            super().on_headers_complete()
            # The application has not begun: it runs in a task.
            scope: dict[str, Any] = {"extensions": {EXTENSION: DirectBody(self.cycle)}}
            self.scope.update(scope)  # type: ignore[typeddict-item]

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._in_headers and not self.transport.is_closing():
                # A header that never ends is not shown to `on_header`.
                self._bytes += len(data)
                if self._bytes > 2 * max_bytes:
                    self.send_400_response("")

        def send_400_response(self, msg: str) -> None:
            if len(self.headers or ()) > max_headers or self._bytes > max_bytes:
                self.transport.write(_ANSWER)
                self.transport.close()
            else:
                super().send_400_response(msg)

    return LimitedProtocol


class _TooLargeError(Exception):
    """Stops the parser."""
