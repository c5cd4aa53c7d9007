"""A bounded folder of copies, which several engines may share, also of other models.

Each layout of pages has a folder of its own, whose name is the layout's digest; there are 256 folders in it, by the
first byte of pages' digests. The least recently used digest of all layouts is evicted first, with all that is kept of
it; a file's modification time says when it was used last. Engines do not talk to each other: writes go to names of
their own and are renamed, one engine at a time evicts, and whoever finds a file gone does without it.
"""

import fcntl
import logging
import os
import secrets
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from jaxllm.kv.tiers.disk.page_file import HEADER_BYTES, PageKey, parse_name, read_page, write_page
from jaxllm.kv.tiers.host_pool import Bytes

logger = logging.getLogger(__name__)

LOCK, TEMPORARY, LAYOUT = ".lock", ".tmp", "layout.json"
STALE_SECONDS = 600
"""After so long, nobody writes a temporary file any more."""
KEPT_SHARE = 0.9
"""So much of the limit is kept when something is evicted, so that this is seldom."""
TOUCH_SECONDS = 60
"""A digest is said to be used at most so often."""


class FolderFullError(OSError):
    """There is no room, as another engine evicts at the moment, or since the limit is too small."""


class FoundFile(NamedTuple):
    """A file in a folder: when it was used last (ns), its bytes, its layout's folder, and whether it may be read."""

    used: int
    size: int
    layout: str
    name: str
    is_own: bool


@dataclass(slots=True)
class _Group:
    """All files of a digest: when one of them was last used (ns), and their bytes."""

    used: int = 0
    size: int = 0
    files: list[Path] = field(default_factory=list)


class DiskFolder:
    """Copies of one layout of pages in `root`, where everything together takes at most `limit` bytes.

    `has` may be asked in any thread at any time; all else is called by one thread, but for `read`, `discard` and
    `forget`, which another thread may call. `layout` is a digest of 32 bytes.
    """

    def __init__(self, root: Path, layout: bytes, limit: int, description: str = "") -> None:
        """Finds the files that are there already. `description` is left there for people. Raises `OSError`."""
        self.root, self.limit = root, limit
        self.total = 0
        """Bytes of all files in the folder, also of other layouts: what was found last, and what was written since."""
        self.scan_seconds = 0.0
        self.on_gone: Callable[[bytes, int], None] | None = None
        """Hears of digests and parts that are there no more, if anybody is to."""
        self._layout, self._folder = layout, root / layout.hex()[:32]
        self._parts: dict[bytes, int] = {}  # of each digest, a bit for each part that there is
        self._touched: dict[bytes, float] = {}
        self._number, self._prefix = 0, f"{os.getpid()}-{secrets.token_hex(8)}"
        self._make_folders(description)
        self.look_again()

    def _make_folders(self, description: str) -> None:
        try:
            for folder in (self._folder, self._folder / TEMPORARY):
                folder.mkdir(mode=0o700, exist_ok=True)
            if not (self._folder / LAYOUT).exists():
                with os.fdopen(os.open(self._folder / LAYOUT, os.O_WRONLY | os.O_CREAT, 0o600), "w") as file:
                    file.write(description)
        except OSError:
            # What is there can be read, even where nothing can be written.
            if not self._folder.is_dir():
                raise

    def __len__(self) -> int:
        """How many digests of the layout it knows."""
        return len(self._parts)

    @property
    def usage(self) -> float:
        """Share of the limit that is used, 0 to 1."""
        return min(1.0, self.total / self.limit)

    def has(self, digest: bytes, part: int) -> bool:
        """Whether there was a copy when that was last looked at."""
        return bool(self._parts.get(digest, 0) >> part & 1)

    def _path(self, digest: bytes, part: int) -> Path:
        name = PageKey(self._layout, digest, part).name
        return self._folder / name[:2] / name

    def write(self, digest: bytes, part: int, data: Bytes, checksum: int) -> None:
        """Write a copy; one that there is already is replaced. Raises `OSError`."""
        size = HEADER_BYTES + len(data)
        if self.total + size > self.limit:
            self._evict(size)
        path = self._path(digest, part)
        self._number += 1
        temporary = self._folder / TEMPORARY / f"{self._prefix}-{self._number}"
        key = PageKey(self._layout, digest, part)
        try:
            write_page(path, temporary, key, data, checksum)
        except FileNotFoundError:
            if path.parent.exists() or not self._folder.is_dir():
                raise
            path.parent.mkdir(mode=0o700, exist_ok=True)
            write_page(path, temporary, key, data, checksum)
        self.total += size
        self._parts[digest] = self._parts.get(digest, 0) | 1 << part

    def read(self, digest: bytes, part: int, into: Bytes) -> int:
        """Bring the bytes of a copy `into` an array of their size. Returns the checksum that they should have.

        Raises `OSError` and `DamagedFileError`.
        """
        return read_page(self._path(digest, part), PageKey(self._layout, digest, part), into)

    def discard(self, digest: bytes, part: int) -> None:
        """A copy is damaged: delete it."""
        self.forget(digest, part)
        with suppress(OSError):
            self._path(digest, part).unlink()

    def forget(self, digest: bytes, part: int) -> None:
        """A copy is gone or cannot be read: do without it, for now."""
        left = self._parts.get(digest, 0) & ~(1 << part)
        if left:
            self._parts[digest] = left
        else:
            self._parts.pop(digest, None)
        self._tell_gone(digest, 1 << part)

    def _tell_gone(self, digest: bytes, parts: int) -> None:
        if self.on_gone is not None:
            for part in _numbers(parts):
                self.on_gone(digest, part)

    def touch(self, digests: Sequence[bytes]) -> None:
        """These were used now, the last one last."""
        now, order = time.time(), 0
        for digest in digests:
            parts = self._parts.get(digest, 0)
            if not parts or now - self._touched.get(digest, 0.0) < TOUCH_SECONDS:
                continue
            self._touched[digest] = now
            order += 1
            when = int(now * 1e9) + order
            for part in _numbers(parts):
                # One that is gone is noticed when it is read.
                with suppress(OSError):
                    os.utime(self._path(digest, part), ns=(when, when))

    def clear(self) -> None:
        """Delete the copies of the layout."""
        self._parts, parts = {}, self._parts
        for digest, each in parts.items():
            for part in _numbers(each):
                self.discard(digest, part)

    def scan(self) -> list[FoundFile]:
        """Look at what is there, which others may have changed. Returns the files of all layouts. Raises `OSError`."""
        begin = time.monotonic()
        found = [file for layout in _folders(self.root) for file in _files(self.root / layout, layout)]
        own = self._folder.name
        parts: dict[bytes, int] = {}
        for file in found:
            key = parse_name(file.name) if file.layout == own and file.is_own else None
            if key is not None:
                parts[key[0]] = parts.get(key[0], 0) | 1 << key[1]
        self._parts, before = parts, self._parts
        for digest, each in before.items() if self.on_gone is not None else ():
            self._tell_gone(digest, each & ~parts.get(digest, 0))
        self._touched = {digest: when for digest, when in self._touched.items() if digest in parts}
        self.total = sum(file.size for file in found)
        self.scan_seconds = time.monotonic() - begin
        return found

    def look_again(self) -> None:
        """Find what others have written, and evict what is over the limit. Raises `OSError`."""
        self.scan()
        if self.total > self.limit:
            # Another engine that evicts does it for all.
            with suppress(FolderFullError):
                self._evict(0)

    def _evict(self, size: int) -> None:
        """Make room for `size` bytes. Raises `OSError`."""
        if size > self.limit:
            raise FolderFullError(f"a copy of {size:,} bytes does not fit into {self.limit:,}")
        with self._locked():
            groups: dict[tuple[str, bytes | str], _Group] = defaultdict(_Group)
            for file in self.scan():
                key = parse_name(file.name)
                group = groups[file.layout, file.name if key is None else key[0]]
                group.used = max(group.used, file.used)
                group.size += file.size
                group.files.append(self.root / file.layout / (file.name[:2] if key else TEMPORARY) / file.name)
            target = min(int(self.limit * KEPT_SHARE), self.limit - size)
            for (layout, digest), group in sorted(groups.items(), key=lambda each: each[1].used):
                if self.total <= target:
                    break
                if isinstance(digest, str):
                    continue  # somebody is writing it
                try:
                    for path in group.files:
                        path.unlink(missing_ok=True)
                except PermissionError:
                    continue  # another user's
                self.total -= group.size
                if layout == self._folder.name:
                    self._tell_gone(digest, self._parts.pop(digest, 0))
        if self.total + size > self.limit:
            raise FolderFullError("others are writing what is left of the limit")

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Alone among engines. Raises `FolderFullError` while another one evicts."""
        file = os.open(self.root / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise FolderFullError("another engine makes room at the moment") from error
            yield
        finally:
            os.close(file)


def _numbers(parts: int) -> list[int]:
    """The numbers of the bits that are set."""
    return [part for part in range(parts.bit_length()) if parts >> part & 1]


def _folders(root: Path) -> list[str]:
    """The folders of layouts."""
    with os.scandir(root) as entries:
        return [each.name for each in entries if len(each.name) == 32 and each.is_dir(follow_symlinks=False)]


def _files(folder: Path, layout: str) -> Iterator[FoundFile]:
    """The files of a layout, temporary ones as well; those that were left behind are deleted."""
    oldest, user = (time.time() - STALE_SECONDS) * 1e9, os.geteuid()
    for inner in _entries(folder):
        if not inner.is_dir(follow_symlinks=False):
            continue
        for each in _entries(Path(inner.path)):
            with suppress(OSError):
                found = each.stat(follow_symlinks=False)
                if inner.name == TEMPORARY and found.st_mtime_ns < oldest:
                    Path(each.path).unlink()
                else:
                    yield FoundFile(found.st_mtime_ns, found.st_size, layout, each.name, found.st_uid == user)


def _entries(folder: Path) -> Iterable["os.DirEntry[str]"]:
    """What is in a folder; nothing where another user's cannot be read, or it is gone."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except (PermissionError, FileNotFoundError):
        return ()
