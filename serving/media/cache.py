"""`ProcessedCache`: images and sounds that were processed before, by what is in them and how that was done."""

import hashlib
import json
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

import numpy as np

from jaxllm.serving.media.image_processors.base import Bytes, ProcessedImage

OVERHEAD: Final = 1024
"""Bytes of an entry, in addition to its content."""
MOST_NAMES: Final = 4
"""Names of an entry, such as digests of different files of the same image, and uuids."""


class Processed(Protocol):
    """What is kept; the digest is the same only for the same content processed the same way."""

    @property
    def digest(self) -> bytes:
        """Of the content."""

    @property
    def nbytes(self) -> int:
        """Memory that it takes."""


Item = TypeVar("Item", bound=Processed)


@dataclass(frozen=True)
class CachedImage:
    """A processed image, see `Processed`."""

    digest: bytes
    image: ProcessedImage

    @property
    def nbytes(self) -> int:
        """Of its crops."""
        return self.image.nbytes


@dataclass
class _Entry(Generic[Item]):
    item: Item
    names: OrderedDict[bytes, None] = field(default_factory=OrderedDict)


class ProcessedCache(Generic[Item]):
    """The least recently used items are dropped, so that all have at most so many bytes. Thread-safe.

    An item has its digest as key, and names for those who have not its content yet: see `name_of_file` and
    `name_of_uuid`.
    """

    def __init__(self, most_bytes: int) -> None:
        """0 bytes keep nothing."""
        self._most = most_bytes
        self._lock = threading.Lock()
        self._entries: OrderedDict[bytes, _Entry[Item]] = OrderedDict()
        self._digests: dict[bytes, bytes] = {}
        self.nbytes = 0
        self.queries = 0
        """Items asked for."""
        self.hits = 0
        """Of these, those that were there."""

    def __len__(self) -> int:
        """Items that are kept."""
        return len(self._entries)

    def find(self, *names: bytes) -> Item | None:
        """The item that has one of these names; counts as one query."""
        with self._lock:
            self.queries += 1
            for name in names:
                digest = self._digests.get(name)
                if digest is not None:
                    self.hits += 1
                    self._entries.move_to_end(digest)
                    return self._entries[digest].item
            return None

    def get(self, digest: bytes, *names: bytes) -> Item | None:
        """The item with a digest, for which `find` knew no name yet: it gets these. Counts a hit, and no query."""
        with self._lock:
            entry = self._entries.get(digest)
            if entry is None:
                return None
            self.hits += 1
            self._entries.move_to_end(digest)
            self._name(entry, names)
            return entry.item

    def put(self, item: Item, *names: bytes) -> None:
        """Keep an item, unless it is larger than all may be together."""
        size = item.nbytes + OVERHEAD
        with self._lock:
            if size > self._most:
                return
            entry = self._entries.get(item.digest)
            if entry is None:
                entry = self._entries[item.digest] = _Entry[Item](item)
                self.nbytes += size
            self._entries.move_to_end(item.digest)
            self._name(entry, names)
            while self.nbytes > self._most:
                self._drop(next(iter(self._entries)))

    def clear(self) -> None:
        """Forget all items, but not the counts."""
        with self._lock:
            self._entries.clear()
            self._digests.clear()
            self.nbytes = 0

    def _name(self, entry: _Entry[Item], names: tuple[bytes, ...]) -> None:
        for name in names:
            former = self._digests.get(name)
            if former is not None and former != entry.item.digest:
                # A client has given its uuid to another one.
                del self._entries[former].names[name]
            self._digests[name] = entry.item.digest
            entry.names[name] = None
            entry.names.move_to_end(name)
        while len(entry.names) > MOST_NAMES:
            del self._digests[entry.names.popitem(last=False)[0]]

    def _drop(self, digest: bytes) -> None:
        entry = self._entries.pop(digest)
        self.nbytes -= entry.item.nbytes + OVERHEAD
        for name in entry.names:
            del self._digests[name]


def options_key(options: Mapping[str, Any]) -> bytes:
    """What an image depends on besides its pixels, in one form: sha256."""
    return hashlib.sha256(json.dumps(options, sort_keys=True, default=repr).encode()).digest()


def image_digest(pixels: Bytes, options: bytes) -> bytes:
    """Of decoded pixels [height, width, 3] and an `options_key`: sha256, never shortened."""
    found = hashlib.sha256(options)
    found.update(f"{pixels.shape[0]}x{pixels.shape[1]}:".encode())
    found.update(np.ascontiguousarray(pixels).data)
    return found.digest()


def name_of_file(data: bytes, options: bytes) -> bytes:
    """Of a file's bytes, so that what was taken before is not decoded again."""
    return hashlib.sha256(b"file" + options + hashlib.sha256(data).digest()).digest()


def name_of_uuid(owner: str, uuid: str, options: bytes) -> bytes:
    """Of a client's own name for an image or sound. Owners cannot name each other's."""
    parts = b"".join(hashlib.sha256(each.encode(errors="surrogatepass")).digest() for each in (owner, uuid))
    return hashlib.sha256(b"uuid" + options + parts).digest()
