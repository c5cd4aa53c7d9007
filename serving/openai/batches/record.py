"""The file of answers, which is also the record of what is done."""

import fcntl
import os
import sys
from collections.abc import Callable, Container
from contextlib import suppress
from pathlib import Path
from typing import IO, Self

import msgspec

from jaxllm.errors import ConfigError, quoted
from jaxllm.serving.openai.batches.lines import BatchAnswer

_BEGIN = b'{"id":"batch_req_'
"""How every line begins: what is cut off shall not be somebody's text."""


class _Known(msgspec.Struct):
    custom_id: str
    response: msgspec.Raw
    error: msgspec.Raw


class BatchRecord:
    """Appends answers to a file, each whole in one write; `done` are those that were there already.

    A process that is killed leaves at most one incomplete line, the last, which the next one cuts off. Two processes
    cannot write to one file. `-` is standard output, which remembers nothing. A context manager.
    """

    def __init__(self, name: str, ids: Container[str], *, opener: Callable[[str, int], int] | None = None) -> None:
        """`ids` are those of the input, `opener` makes the file.

        Raises `ConfigError` for a file of anything else, which stays as it is.
        """
        self.done: set[str] = set()
        self._name = name
        self._ids = ids
        try:
            self._file: IO[bytes] = sys.stdout.buffer if name == "-" else open(name, "a+b", buffering=0, opener=opener)  # noqa: SIM115
        except OSError as error:
            raise ConfigError(f"cannot write --output-file: {error}") from None
        self._regular = name != "-" and Path(name).is_file()
        if self._regular:
            try:
                self._resume()
            except BaseException:
                self._file.close()
                raise

    def _resume(self) -> None:
        """Find out what is done, and cut off what is not whole."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ConfigError(f"{self._name}: another process is writing to it") from None
        self._file.seek(0)
        whole = 0
        with open(self._file.fileno(), "rb", closefd=False) as lines:
            for number, line in enumerate(lines, start=1):
                if not line.endswith(b"\n"):
                    if not (line.startswith(_BEGIN) or _BEGIN.startswith(line)):
                        raise self._foreign(f"line {number} is not a batch response")
                    break
                self._take(number, line)
                whole += len(line)
        self._file.truncate(whole)

    def _take(self, number: int, line: bytes) -> None:
        try:
            name = msgspec.json.decode(line, type=_Known).custom_id
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise self._foreign(f"line {number} is not a batch response") from None
        if name not in self._ids:
            raise self._foreign(f"line {number} answers {quoted(name)}, which is not in the input")
        if name in self.done:
            raise self._foreign(f"line {number} answers {quoted(name)} a second time")
        self.done.add(name)

    def _foreign(self, reason: str) -> ConfigError:
        return ConfigError(f"{self._name}: {reason}; give a new --output-file, or the one that belongs to this input")

    def add(self, answer: BatchAnswer) -> None:
        """Write an answer down. Raises `ConfigError` when the disk is full."""
        line = msgspec.json.encode(answer) + b"\n"
        whole = os.fstat(self._file.fileno()).st_size if self._regular else 0
        try:
            while line:
                line = line[self._file.write(line) :]
            if not self._regular:
                self._file.flush()
        except BrokenPipeError:
            raise
        except OSError as error:
            if self._regular:
                # Whoever reads the file finds whole lines.
                with suppress(OSError):
                    os.ftruncate(self._file.fileno(), whole)
            raise ConfigError(
                f"cannot write {self._name}: {error.strerror}; run the same command again to continue"
            ) from error

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._regular:
            with suppress(OSError):
                os.fsync(self._file.fileno())
        if self._name != "-":
            self._file.close()
