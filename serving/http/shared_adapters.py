"""The list of adapters that several API server processes serve. Each may change it, and all know it at once."""

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from jaxllm.requests.lora_request import LoRARequest

_HEAD = struct.Struct("!QQQQ")


class ServedAdapter(msgspec.Struct, frozen=True):
    """An adapter under its name, and the name of the model that it is for."""

    request: LoRARequest
    parent: str


class SharedAdapters:
    """A file without a name that all processes have open: how often the list was changed, where it is, and the list.

    With it is the last number that an adapter has had: none has that of one that was removed.

    An empty file is a list that nobody has changed.
    """

    def __init__(self, handle: int) -> None:
        self._file = handle

    @property
    def version(self) -> int:
        """How often the list was changed."""
        return self._head()[0]

    def read(self) -> tuple[int, int, list[ServedAdapter]]:
        """The version, the last number, and the list. Only within `locked`."""
        version, last, start, size = self._head()
        data = os.pread(self._file, size, start)
        return version, last, msgspec.msgpack.decode(data, type=list[ServedAdapter]) if version else []

    def write(self, adapters: list[ServedAdapter], last: int) -> int:
        """Replace the list and the last number. Only within `locked`. Returns the new version."""
        data = msgspec.msgpack.encode(adapters)
        version, _, start, size = self._head()
        # Never over the list that counts: this process may die at any time.
        fits_before = _HEAD.size + len(data) <= start
        place = _HEAD.size if fits_before else max(start + size, _HEAD.size)
        os.pwrite(self._file, data, place)
        os.pwrite(self._file, _HEAD.pack(version + 1, last, place, len(data)), 0)
        return version + 1

    @contextmanager
    def locked(self) -> Iterator[None]:
        """No other process reads or changes the list. The lock of a process that dies is gone with it."""
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    def _head(self) -> tuple[int, int, int, int]:
        """The version, the last number, and where the list is: its first byte, and how many bytes it has."""
        data = os.pread(self._file, _HEAD.size, 0)
        version, last, start, size = _HEAD.unpack(data) if data else (0, 0, 0, 0)
        return version, last, start, size
