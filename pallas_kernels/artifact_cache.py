"""The cache on disk for whatever can be made again: executables, compiled kernels, tokenizers.

It lies in the lowest layer because kernels need it too, and imports nothing but the standard library.
"""

import fcntl
import functools
import hashlib
import logging
import os
import secrets
import shutil
import time
from contextlib import suppress
from pathlib import Path

logger = logging.getLogger(__name__)

IN_USE_SECONDS = 3600
"""Artifacts used so recently are not pruned: a start that is under way keeps its artifacts."""

_FORMAT = b"jaxllm artifact 1 "
_HEADER_BYTES = len(_FORMAT) + 2 * hashlib.sha256().digest_size + 1
_UNFINISHED = ".unfinished"
_PRUNED_PARTS = 64
"""What writes prunes whenever it has written one of so many parts of what a cache may take."""


class ArtifactCache:
    """Named bytes in a folder of the user's: each is written whole or not at all, and checked when it is read.

    A name is `file`, or `folder/file` for artifacts that are used together and go together. Any number of threads and
    processes may share a cache. It costs at most time: what is broken is deleted, and what cannot be written is only
    logged. Whoever can write to the folder decides what its users load.
    """

    def __init__(self, folder: Path, largest: int, in_use_seconds: float = IN_USE_SECONDS) -> None:
        """`largest`: bytes of all artifacts together. Beyond that, those used longest ago go first.

        What was used in the last `in_use_seconds` stays in any case.

        Every writer may exceed it by a 64th: a look at all files for each that is written would take longer than to
        write it, where there are thousands.
        """
        self.folder = folder
        self._largest, self._in_use_seconds = largest, in_use_seconds
        # Bytes written since the last look; before the first, as many as make one due.
        self._unpruned = largest

    def get(self, name: str) -> memoryview | None:
        """The bytes of an artifact; None if it is not there or broken."""
        try:
            content = (self.folder / name).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            self.discard(name, error)
            return None
        data = memoryview(content)[_HEADER_BYTES:]
        if not content.startswith(_header(data)):
            self.discard(name, "corrupt or from another version")
            return None
        with suppress(OSError):
            # When it was used last.
            os.utime(self._entry(name))
        return data

    def put(self, name: str, data: bytes) -> None:
        """Cache an artifact, if possible: whoever cannot is only slower to start."""
        path = self.folder / name
        unfinished = path.with_name(f"{path.name}.{secrets.token_hex(4)}{_UNFINISHED}")
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with unfinished.open("wb") as file:
                file.write(_header(data))
                file.write(data)
            unfinished.replace(path)
        except OSError as error:
            with suppress(OSError):
                unfinished.unlink()
            logger.warning("cannot cache %s for the next start: %s", path, error)
        else:
            self._unpruned += len(data)
            if self._unpruned * _PRUNED_PARTS >= self._largest:
                self._unpruned = 0
                self.prune()

    def discard(self, name: str, why: object) -> None:
        """Delete an artifact that cannot be used."""
        path = self.folder / name
        logger.warning("%s cannot be used and is rebuilt: %s", path, why)
        with suppress(OSError):
            path.unlink()

    def prune(self) -> int:
        """Remove what was used longest ago until all takes `largest` bytes, and what writers left unfinished.

        Returns the bytes that are left, which are more where too much is in use.
        """
        long_ago = time.time() - self._in_use_seconds
        entries = []
        for entry in self.folder.glob("*"):
            # Another process may be removing it.
            with suppress(OSError):
                used, size = entry.stat().st_mtime, _size(entry, long_ago)
                entries.append((used, size, entry))
        total = sum(size for _, size, _ in entries)
        for used, size, entry in sorted(entries):
            if total <= self._largest or used > long_ago:
                break
            if _remove(entry):
                total -= size
        return total

    def _entry(self, name: str) -> Path:
        """The files that are used and pruned as one."""
        return self.folder / Path(name).parts[0]


def hold(folder: Path) -> None:
    """Keep a folder of a cache from being pruned by any process of this machine as long as this one lives.

    That is so where the system has locks. Others may not hear of them, where several machines share a file system.
    Whoever finds a folder looks whether it is still there once it is held.
    """
    with suppress(OSError):
        while True:
            with suppress(_ReplacedError):
                _lock(folder, folder.stat().st_ino)
                return


class _ReplacedError(Exception):
    """While a lock was waited for, its folder was removed, and another one may be at its place."""


@functools.cache
def _lock(folder: Path, inode: int) -> int:
    """A descriptor that stays open, and with it the lock."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        if not _is_at(descriptor, folder) or os.fstat(descriptor).st_ino != inode:
            raise _ReplacedError
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _is_at(descriptor: int, folder: Path) -> bool:
    """Whether an open folder is the one at this path."""
    return os.path.samestat(os.fstat(descriptor), folder.stat())


def _header(data: bytes | memoryview) -> bytes:
    return _FORMAT + hashlib.sha256(data).hexdigest().encode() + b"\n"


def _size(entry: Path, long_ago: float) -> int:
    """Bytes of a file, or of a folder's files, without what writers that are gone left unfinished.

    A link counts as itself: what it points to is not in the cache.
    """
    total = 0
    for file in entry.iterdir() if entry.is_dir() else (entry,):
        found = file.lstat()
        if file.name.endswith(_UNFINISHED) and found.st_mtime < long_ago:
            file.unlink()
        else:
            total += found.st_size
    return total


def _remove(entry: Path) -> bool:
    """Delete a file, or a folder that nobody holds; whether it is gone."""
    if not entry.is_dir():
        with suppress(OSError):
            entry.unlink()
        return not entry.exists()
    with suppress(OSError):
        descriptor = os.open(entry, os.O_RDONLY)
        try:
            # Another process may have removed it just before, and a third one may have made and hold a new one.
            if _is_held(descriptor) or not _is_at(descriptor, entry):
                return False
            # Whole or not at all: half a folder would pass for a whole one. What a kill leaves is pruned another time.
            gone = entry.with_name(f".{secrets.token_hex(8)}{_UNFINISHED}")
            entry.rename(gone)
            shutil.rmtree(gone, ignore_errors=True)
        finally:
            os.close(descriptor)
    return not entry.exists()


def _is_held(descriptor: int) -> bool:
    """Whether some process holds a folder; if not, none can before the descriptor is closed."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # There are no locks here.
        return False
    return False
