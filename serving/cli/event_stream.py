"""Server-sent events, as a client reads them."""

from collections.abc import Iterator


class EventReader:
    """Splits a stream of bytes into the data of its events; OpenAI's carry one line of data each.

    The specification: https://html.spec.whatwg.org/multipage/server-sent-events.html. Bytes and not text lines: what
    Unicode calls a line separator may stand inside the JSON.
    """

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take bytes as they arrive; yields the data of every event line that they complete."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            if line.startswith(b"data:"):
                yield line[5:].strip()
