"""Files of clients: on disk, each its owner's alone, limited in number and in bytes, deleted when they expire."""

import fcntl
import logging
import secrets
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Container
from pathlib import Path
from typing import IO

import msgspec

from jaxllm.errors import ConfigError, QueueFullError, StorageError
from jaxllm.serving.openai.files.private import make_private, open_private, write_whole
from jaxllm.serving.openai.protocol.files import FileObject

logger = logging.getLogger(__name__)

_RECORD = ".file.json"


class StoredFile(msgspec.Struct, kw_only=True):
    """A file and whose it is."""

    owner: str
    file: FileObject


class FileStore:
    """At most `max_files` of together `max_bytes`, one owner's at most a `share` of these. Belongs to one event loop.

    With `folder` None, files are in a temporary folder and end with the store; otherwise they are found again there.
    """

    def __init__(
        self,
        folder: str | None,
        *,
        max_files: int,
        max_bytes: int,
        lifetime: int,
        share: float = 1.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`lifetime` is in seconds. Raises `ConfigError` for a folder that cannot be used."""
        self.lifetime = lifetime
        self._room = Room(max_files, max_bytes, share)
        self._clock = clock
        self._given = None if folder is None else Path(folder)
        self._folder: Path | None = None
        self._lock: IO[bytes] | None = None
        self._files: dict[str, StoredFile] = {}
        if self._given is not None:
            self._open(self._given)

    @property
    def num_bytes(self) -> int:
        """Bytes of all files, including those reserved for files that are being written."""
        return self._room.num_bytes

    @property
    def persistent(self) -> bool:
        """Whether files outlive this store."""
        return self._given is not None

    @property
    def folder(self) -> Path:
        """Where they are; a temporary folder is made when it is first needed."""
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="jaxllm-files-"))
        return self._folder

    def _open(self, folder: Path) -> None:
        self._lock = lock_folder(folder)
        self._folder = folder
        for record in sorted(folder.glob(f"*{_RECORD}")):
            try:
                known = msgspec.json.decode(record.read_bytes(), type=StoredFile)
            except (OSError, msgspec.DecodeError):
                continue
            if self.path(known.file.id).is_file():
                self._files[known.file.id] = known
                self._count(known.owner, 1, known.file.bytes)
        self.expire()

    def path(self, file_id: str) -> Path:
        """Where the bytes of a file are."""
        return self.folder / file_id

    # Room

    def reserve(self, owner: str, num_bytes: int) -> None:
        """Count bytes that are about to be written. Raises `StorageError` and `QueueFullError` if there is no room."""
        self._take(owner, "bytes", num_bytes)

    def release(self, owner: str, num_bytes: int) -> None:
        """Bytes that were reserved are not needed."""
        self._room.add(owner, "bytes", -num_bytes)

    def new_id(self, owner: str) -> str:
        """An id for a file that is about to be written. Raises `StorageError` and `QueueFullError` for too many."""
        self._take(owner, "files", 1)
        return f"file-{secrets.token_hex(12)}"

    def forget(self, owner: str, file_id: str, num_bytes: int) -> None:
        """What was begun with `new_id` and `reserve` is no file."""
        self._count(owner, -1, -num_bytes)
        _delete(self.path(file_id))

    def reopen(self, owner: str, num_bytes: int) -> None:
        """Two files, with bytes that are reserved for them, are being written on since before this store."""
        self._count(owner, 2, num_bytes)

    def _take(self, owner: str, kind: str, count: int) -> None:
        if not self._room.fits(owner, kind, count):
            self.expire()
        self._room.take(owner, kind, count)

    def _count(self, owner: str, num_files: int, num_bytes: int) -> None:
        self._room.add(owner, "files", num_files)
        self._room.add(owner, "bytes", num_bytes)

    # Files

    def add(self, owner: str, file: FileObject, *, lasting: bool = True) -> None:
        """Keep a file whose bytes are written and reserved; its id is of `new_id`. Raises `OSError`.

        One that is not `lasting` is forgotten with this store, and needs no room on the disk.
        """
        stored = StoredFile(owner=owner, file=file)
        if self.persistent and lasting:
            write_whole(self.folder / f"{file.id}{_RECORD}", msgspec.json.encode(stored))
        self._files[file.id] = stored

    def get(self, file_id: str, owner: str) -> FileObject | None:
        """A file of this owner; None if it is not there, or another's."""
        self.expire()
        stored = self._files.get(file_id)
        return stored.file if stored is not None and stored.owner == owner else None

    def files(self, owner: str) -> list[FileObject]:
        """All files of this owner, the oldest first."""
        self.expire()
        return [stored.file for stored in self._files.values() if stored.owner == owner]

    def delete(self, file_id: str) -> None:
        """Delete a file; who reads it at this time reads on."""
        stored = self._files.pop(file_id)
        self._count(stored.owner, -1, -stored.file.bytes)
        _delete(self.folder / f"{file_id}{_RECORD}")
        _delete(self.path(file_id))

    def expire(self) -> None:
        """Delete what has expired."""
        now = self._clock()
        for file_id, stored in list(self._files.items()):
            if stored.file.expires_at is not None and stored.file.expires_at <= now:
                self.delete(file_id)

    def sweep(self, keep: Container[str]) -> None:
        """Delete what a server that was killed has left half written, but for files of these ids."""
        for path in self.folder.glob("file-*"):
            file_id = path.name.partition(".")[0]
            if file_id not in self._files and file_id not in keep:
                _delete(path)

    def now(self) -> int:
        """Seconds since 1970."""
        return int(self._clock())

    def close(self) -> None:
        """Delete a temporary folder."""
        if self._lock is not None:
            self._lock.close()
        elif self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def lock_folder(folder: Path, option: str = "files_dir") -> IO[bytes]:
    """Make a folder for files, and hold it until what this returns is closed. Raises `ConfigError` of the option."""
    try:
        make_private(folder)
        # There may be a lock that can be opened in a folder where nothing can be written.
        with tempfile.TemporaryFile(dir=folder):
            lock = open_private(folder / "lock", "ab")
    except OSError as error:
        reason = "it is a file, not a folder" if isinstance(error, FileExistsError) else error.strerror
        raise ConfigError(f"{option}={str(folder)!r}: {reason}; give a writable folder") from None
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise ConfigError(f"{option}={str(folder)!r}: in use by another server") from None
    return lock


def _delete(path: Path) -> None:
    """Delete a file, if that is possible: a disk that cannot be written must not keep clients from the rest."""
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        logger.warning("cannot delete %s: %s", path, error.strerror)


class Room:
    """At most `max_files` of together `max_bytes`; one owner has at most `share` (from 0 to 1) of either."""

    def __init__(self, max_files: int, max_bytes: int, share: float) -> None:
        self._max = {"files": max_files, "bytes": max_bytes}
        # A batch has three files; fewer would be of no use.
        self._own = {"files": max(min(3, max_files), int(max_files * share)), "bytes": int(max_bytes * share)}
        self._flags = {"files": "--max-stored-files", "bytes": "--max-stored-file-bytes"}
        self._used: dict[str, Counter[str]] = {"files": Counter(), "bytes": Counter()}
        self._all = Counter({"files": 0, "bytes": 0})

    @property
    def num_bytes(self) -> int:
        """Bytes of all owners."""
        return self._all["bytes"]

    def fits(self, owner: str, kind: str, count: int) -> bool:
        """Whether there is room for so many `files` or `bytes` more."""
        return self._all[kind] + count <= self._max[kind] and self._used[kind][owner] + count <= self._own[kind]

    def take(self, owner: str, kind: str, count: int) -> None:
        """Count so many more. Raises `StorageError` if its owner may not have them, else `QueueFullError`."""
        flag = self._flags[kind]
        if self._used[kind][owner] + count > self._own[kind]:
            raise StorageError(
                f"your storage is full: your files may have {self._own[kind]} {kind} in total "
                f"(--max-stored-file-share of {flag}); delete some"
            )
        if self._all[kind] + count > self._max[kind]:
            raise QueueFullError(
                f"the storage is full: files may have {self._max[kind]} {kind} in total ({flag}); delete some", 60.0
            )
        self.add(owner, kind, count)

    def add(self, owner: str, kind: str, count: int) -> None:
        """Count so many more, or fewer if it is negative, whatever the limits."""
        used = self._used[kind]
        used[owner] += count
        self._all[kind] += count
        if not used[owner]:
            del used[owner]
