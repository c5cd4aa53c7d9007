"""The list of adapters that several API server processes serve. Each may change it, and all know it at once."""

import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from jaxllm.requests.lora_request import LoRARequest

_HEAD = struct.Struct("!QQQ")


class ServedAdapter(msgspec.Struct, frozen=True):
    """An adapter under its name, and the name of the model that it is for."""

    request: LoRARequest
    parent: str


class SharedAdapters:
    """A file without a name that all processes have open: how often the list was changed, where it is, and the list.

    An empty file is a list that nobody has changed.
    """

    def __init__(self, handle: int) -> None:
        self._file = handle

    @property
    def version(self) -> int:
        """How often the list was changed."""
        return self._head()[0]

    def read(self) -> tuple[int, list[ServedAdapter]]:
        """The version, and the list. Only within `locked`."""
        version, start, size = self._head()
        data = os.pread(self._file, size, start)
        return version, msgspec.msgpack.decode(data, type=list[ServedAdapter]) if version else []

    def write(self, adapters: list[ServedAdapter]) -> int:
        """Replace the list. Only within `locked`. Returns the new version."""
        data = msgspec.msgpack.encode(adapters)
        version, start, size = self._head()
        # Never over the list that counts: this process may die at any time.
        fits_before = _HEAD.size + len(data) <= start
        place = _HEAD.size if fits_before else max(start + size, _HEAD.size)
        os.pwrite(self._file, data, place)
        os.pwrite(self._file, _HEAD.pack(version + 1, place, len(data)), 0)
        return version + 1

    @contextmanager
    def locked(self) -> Iterator[None]:
        """No other process reads or changes the list. The lock of a process that dies is gone with it."""
        fcntl.lockf(self._file, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._file, fcntl.LOCK_UN)

    def _head(self) -> tuple[int, int, int]:
        """The version, and where the list is: its first byte, and their number."""
        data = os.pread(self._file, _HEAD.size, 0)
        version, start, size = _HEAD.unpack(data) if data else (0, 0, 0)
        return version, start, size
