"""Where API server processes write what they have measured, so that each can answer for all."""

import mmap
import struct
import zlib
from collections.abc import Iterator
from typing import IO

import msgspec

from jaxllm.serving.metrics import Measured

_HEAD = struct.Struct("!II")
_SLOT_BYTES = 1 << 17
_ATTEMPTS = 20


class Posted(msgspec.Struct):
    """What one process has to say: its requests in flight, and all it has measured since it started."""

    load: int
    measured: Measured


class Board:
    """A file without a name, mapped by all processes, with a slot for each.

    A slot is read without a lock: a checksum tells whether it was being written meanwhile.
    """

    def __init__(self, handle: int, index: int, count: int) -> None:
        """`handle` is a file of `size_of(count)` bytes; this process writes slot `index`."""
        self._map = mmap.mmap(handle, size_of(count))
        self._index, self._count = index, count
        self._last = b""

    def post(self, posted: Posted) -> None:
        """Write what this process has to say."""
        data = msgspec.msgpack.encode(posted)
        assert len(data) <= _SLOT_BYTES - _HEAD.size
        if data != self._last:
            start = self._index * _SLOT_BYTES
            self._map[start : start + _HEAD.size + len(data)] = _HEAD.pack(len(data), zlib.crc32(data)) + data
            self._last = data

    def others(self) -> list[Posted]:
        """What the other processes have said last; those that have said nothing are left out."""
        return list(self._others())

    def _others(self) -> Iterator[Posted]:
        for index in range(self._count):
            if index != self._index:
                data = self._read(index)
                if data:
                    yield msgspec.msgpack.decode(data, type=Posted)

    def _read(self, index: int) -> bytes:
        start = index * _SLOT_BYTES
        for _ in range(_ATTEMPTS):
            length, checksum = _HEAD.unpack(self._map[start : start + _HEAD.size])
            data = self._map[start + _HEAD.size : start + _HEAD.size + min(length, _SLOT_BYTES - _HEAD.size)]
            if zlib.crc32(data) == checksum:
                return data
        return b""

    def close(self) -> None:
        """Unmap the file."""
        self._map.close()


def size_of(count: int) -> int:
    """Bytes of the file for `count` processes."""
    return count * _SLOT_BYTES


def make_file(file: IO[bytes], count: int) -> int:
    """Give an empty file its size; its descriptor."""
    file.truncate(size_of(count))
    return file.fileno()
