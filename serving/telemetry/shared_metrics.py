"""Where API server processes write what they have measured, so that each can answer for all."""

import mmap
import os
import struct
import tempfile
import zlib
from typing import IO, Any

import msgspec

from jaxllm.config import MAX_ENGINES
from jaxllm.serving.telemetry.engine_metrics import EngineState
from jaxllm.serving.telemetry.metrics import ProcessMeasured

_HEAD = struct.Struct("!QII")
_HALF_BYTES = MAX_ENGINES << 17
"""Room for that many engines; what is not used takes no memory."""
_ATTEMPTS = 20


class Published(msgspec.Struct):
    """The report of one process: its requests in flight, and all that was measured in its place."""

    load: int
    measured: ProcessMeasured


class SharedMetrics:
    """A file without a name, mapped by all processes, with a slot for each, and one for the state of the engine.

    A slot has two halves, written one after the other: while one is written, or whoever wrote it died, the other is
    whole. It is read without a lock; a checksum tells which halves are whole, and a number which is newer.
    """

    def __init__(self, handle: int, index: int, count: int) -> None:
        """`handle` is a file of `size_of(count)` bytes; this process writes slot `index`."""
        self._map = mmap.mmap(handle, size_of(count))
        self._index, self._count = index, count
        self._half = _HALF_BYTES
        self._last = b""

    def publish(self, published: Published) -> None:
        """Write what this process has to say."""
        data = msgspec.msgpack.encode(published)
        if data != self._last:
            self._write(self._index, data)
            self._last = data

    def own(self) -> Published | None:
        """The last values published in this slot, perhaps by a process that is gone."""
        return self._decode(self._index, Published)

    def others(self) -> list[Published]:
        """The last reports of the other processes; those that have said nothing are left out."""
        found = (self._decode(index, Published) for index in range(self._count) if index != self._index)
        return [published for published in found if published is not None]

    def publish_engines(self, states: list[EngineState]) -> None:
        """Write what is known of the engines: for the supervisor."""
        data = msgspec.msgpack.encode(states)
        if data != self._last:
            self._write(self._count, data)
            self._last = data

    def engines(self) -> list[EngineState] | None:
        """Facts about the engines."""
        return self._decode(self._count, list[EngineState])

    def clear_load(self, index: int) -> None:
        """The process of this place is gone, and its requests with it; what it has measured stays."""
        published = self._decode(index, Published)
        if published is not None:
            published.load, published.measured.without_engine = 0, []
            self._write(index, msgspec.msgpack.encode(published))

    def _write(self, index: int, data: bytes) -> None:
        assert len(data) <= self._half - _HEAD.size
        number, _ = self._newest(index)
        number += 1
        start = (2 * index + number % 2) * self._half
        head = _HEAD.pack(number, len(data), _checksum(number, data))
        self._map[start : start + _HEAD.size + len(data)] = head + data

    def _decode(self, index: int, kind: Any) -> Any:
        _, data = self._newest(index)
        return msgspec.msgpack.decode(data, type=kind) if data else None

    def _newest(self, index: int) -> tuple[int, bytes]:
        """The newer of the halves that are whole, with its number; (0, empty) when nothing was said yet."""
        for _ in range(_ATTEMPTS):
            halves = (self._read((2 * index + half) * self._half) for half in (0, 1))
            newest = max(halves, key=lambda half: half[0])
            if newest[0]:
                return newest
        return 0, b""

    def _read(self, start: int) -> tuple[int, bytes]:
        number, length, checksum = _HEAD.unpack(self._map[start : start + _HEAD.size])
        data = self._map[start + _HEAD.size : start + _HEAD.size + min(length, self._half - _HEAD.size)]
        return (number, data) if _checksum(number, data) == checksum else (0, b"")

    def close(self) -> None:
        """Unmap the file."""
        self._map.close()


def _checksum(number: int, data: bytes) -> int:
    return zlib.crc32(data, number & 0xFFFFFFFF)


def size_of(count: int) -> int:
    """Bytes of the file for `count` processes."""
    return 2 * (count + 1) * _HALF_BYTES


def open_file() -> IO[bytes]:
    """An empty file without a name: in memory where the system has that, so that a full disk ends nobody."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("jaxllm-metrics"), "r+b")
    return tempfile.TemporaryFile()


def make_file(file: IO[bytes], count: int) -> int:
    """Give an empty file its size; its descriptor."""
    file.truncate(size_of(count))
    return file.fileno()
