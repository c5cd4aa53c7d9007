"""The file of requests: checked as a whole before the model is loaded, and read again while it is worked off."""

import shutil
import sys
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Self

from jaxllm.errors import ConfigError, RequestError, quoted
from jaxllm.serving.openai.batches.lines import BatchRequest, decode

MOST_SHOWN = 5
"""Wrong lines that an error message names."""


class BatchInput:
    """Requests of a file, or of standard input (`-`). Only their names are kept in memory. A context manager."""

    def __init__(self, name: str, urls: tuple[str, ...]) -> None:
        """`urls` are the paths that requests may go to. Raises `ConfigError` when the file cannot be read."""
        self.name = name
        self.ids: dict[str, int] = {}
        """The line of each `custom_id`, once checked."""
        self._urls = urls
        try:
            self._file: IO[bytes] = _spooled() if name == "-" else Path(name).open("rb")  # noqa: SIM115  (closed in __exit__)
        except OSError as error:
            raise ConfigError(f"cannot read --input-file: {error}") from None

    def check(self) -> None:
        """Look at every line. Raises `RequestError` that names those that are wrong: none is run then."""
        shown, num_more = list[str](), 0
        for number, message in self.problems():
            if len(shown) < MOST_SHOWN:
                shown.append(f"line {number}: {message}")
            else:
                num_more += 1
        if shown:
            more = f"; and {num_more} more invalid lines" if num_more else ""
            raise RequestError(f"{self.name}: {'; '.join(shown)}{more}")
        if not self.ids:
            raise RequestError(f"{self.name}: the file contains no requests")

    def problems(self, most: int | None = None, most_bytes: int | None = None) -> Iterator[tuple[int, str]]:
        """The faults of every line, by its number; nothing after `most` requests is looked at.

        `most_bytes` are those that a line may have.
        """
        for number, line in self._lines():
            try:
                if most_bytes is not None and len(line) > most_bytes:
                    raise RequestError(f"{len(line)} bytes; a request may have at most {most_bytes}")
                request = decode(line, self._urls)
                first = self.ids.setdefault(request.custom_id, number)
                if first != number:
                    raise RequestError(f"custom_id {quoted(request.custom_id)} is already used in line {first}")
            except RequestError as error:
                yield number, str(error)
            if most is not None and len(self.ids) > most:
                yield number, f"more than {most} requests"
                return

    def requests(self, without: Collection[str]) -> Iterator[BatchRequest]:
        """The requests in order, but for those named."""
        for _, line in self._lines():
            request = decode(line, self._urls)
            if request.custom_id not in without:
                yield request

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        self._file.seek(0)
        for number, line in enumerate(self._file, start=1):
            # A byte order mark is what some editors put in front.
            text = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
            if text.strip():
                yield number, text

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _spooled() -> IO[bytes]:
    """Standard input in a file without a name, because it is read twice."""
    file = tempfile.TemporaryFile()  # noqa: SIM115  (closed by its owner)
    shutil.copyfileobj(sys.stdin.buffer, file)
    return file
