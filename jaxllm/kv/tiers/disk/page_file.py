"""A file with what a page or a state holds: a header that says what it is of, and its bytes.

A file appears under its name when all of it is written, and is never changed. It is not flushed to the disk: after a
loss of power it may have other bytes, which its checksum tells.
"""

import errno
import os
import stat
import struct
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxllm.kv.tiers.host_pool import Bytes

_HEADER = struct.Struct("<8sQII32s32s")
_MAGIC = b"JAXLLMKV"
HEADER_BYTES = _HEADER.size


class DamagedFileError(Exception):
    """A file is not what its name says: cut off, of something else, or with other bytes than were written."""


class PageKey(NamedTuple):
    """What a file is of: the layout of pages (32 bytes), the digest of a page, and its part, as in `HostCopy`."""

    layout: bytes
    digest: bytes
    part: int

    @property
    def name(self) -> str:
        """The name of its file: the digest in hexadecimal digits, and the part."""
        return f"{self.digest.hex()}.{self.part}"

    def header(self, size: int, checksum: int) -> bytes:
        """The beginning of its file, before `size` bytes with this checksum."""
        return _HEADER.pack(_MAGIC, size, checksum, self.part, self.digest, self.layout)


def parse_name(name: str) -> tuple[bytes, int] | None:
    """The digest and part that a file's name says; None for other names."""
    digits, _, part = name.partition(".")
    if len(digits) != 64 or not part.isdecimal() or len(part) > 4:
        return None
    try:
        return bytes.fromhex(digits), int(part)
    except ValueError:
        return None


def write_page(path: Path, temporary: Path, key: PageKey, data: Bytes, checksum: int) -> None:
    """Write a file that only its owner can read. Raises `OSError`; then there is no file that was not there before.

    `temporary` is a name that nobody else uses, in the same file system.
    """
    file = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        try:
            _write_all(file, [memoryview(key.header(len(data), checksum)), data.data])
        finally:
            os.close(file)
        temporary.rename(path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def _write_all(file: int, parts: list[memoryview]) -> None:
    while parts:
        written = os.writev(file, parts)
        if not written:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        while parts and written >= len(parts[0]):
            written -= len(parts.pop(0))
        if parts:
            parts[0] = parts[0][written:]


def read_page(path: Path, key: PageKey, into: Bytes) -> int:
    """Bring the bytes of a file `into` an array of their size. Returns the checksum that they should have.

    Raises `OSError`, also for the file of another user, and `DamagedFileError` for one that is not of this key and
    size.
    """
    file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(file)
        if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
            raise PermissionError(errno.EPERM, "not a file of the engine's own user", str(path))
        if found.st_size != HEADER_BYTES + len(into):
            raise DamagedFileError(f"has {found.st_size:,} bytes, not {HEADER_BYTES + len(into):,}")
        header = np.empty(HEADER_BYTES, np.uint8)
        _read_all(file, [header.data, into.data])
    finally:
        os.close(file)
    checksum: int = _HEADER.unpack(header.tobytes())[2]
    if header.tobytes() != key.header(len(into), checksum):
        raise DamagedFileError("is not of the page that its name says")
    return checksum


def _read_all(file: int, parts: list[memoryview]) -> None:
    while parts:
        count = os.readv(file, parts)
        if not count:
            raise DamagedFileError("was cut off while it was read")
        while parts and count >= len(parts[0]):
            count -= len(parts.pop(0))
        if parts:
            parts[0] = parts[0][count:]
