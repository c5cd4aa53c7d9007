"""Which rows of the pool on the devices hold which image. An image that nobody needs stays until there is no room."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jaxllm.requests.media import MediaItem

Int32Array = npt.NDArray[np.int32]


@dataclass(slots=True)
class _Entry:
    rows: Int32Array
    users: int = 0
    is_complete: bool = False


class MediaPool:
    """The images in a pool of `num_rows` rows, by the digest of what they are made of.

    An image that requests have pinned stays. Of the others, those that were needed least recently make room.
    """

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self.num_queries = self.num_hits = 0
        """Images that requests have asked for, and those that were here already."""
        self._free = np.arange(num_rows, dtype=np.int32)[::-1].copy()
        self._num_free = num_rows
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()  # what was needed least recently first

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def num_used(self) -> int:
        """Rows that hold an image."""
        return self.num_rows - self._num_free

    @property
    def num_pinned(self) -> int:
        """Images that requests need."""
        return sum(entry.users > 0 for entry in self._entries.values())

    def pin(self, items: Sequence[MediaItem]) -> list[MediaItem] | None:
        """Keep the images of a request here until `unpin`. Returns those that have still to be encoded, each once.

        None, and no change, where there is no room for all of them now.
        """
        distinct = {item.digest: item for item in items}
        missing = [item for digest, item in distinct.items() if digest not in self._entries]
        needed = sum(item.num_kept for item in missing)
        if needed > self._num_free and not self._make_room(needed, distinct):
            return None
        self.num_queries += len(distinct)
        self.num_hits += len(distinct) - len(missing)
        for item in missing:
            self._num_free -= item.num_kept
            self._entries[item.digest] = _Entry(self._free[self._num_free : self._num_free + item.num_kept].copy())
        for digest in distinct:
            self._entries[digest].users += 1
            self._entries.move_to_end(digest)
        return missing

    def complete(self, item: MediaItem) -> None:
        """The image is encoded, or will be before any later step."""
        self._entries[item.digest].is_complete = True

    def unpin(self, items: Iterable[MediaItem]) -> None:
        """A request needs its images no more. What was never encoded goes."""
        for digest in {item.digest for item in items}:
            entry = self._entries[digest]
            entry.users -= 1
            if not entry.users and not entry.is_complete:
                self._drop(digest)

    def kept_rows(self, item: MediaItem) -> Int32Array:
        """Where the rows are that are kept of an image, int32 [num_kept]."""
        return self._entries[item.digest].rows

    def rows(self, items: Iterable[MediaItem]) -> Int32Array:
        """Where the rows of a prompt's images are, one image after the other: int32 [rows in the prompt]."""
        return np.concatenate([_arranged(item, self._entries[item.digest].rows) for item in items])

    def clear(self) -> None:
        """Forget all images: the pool's contents are gone. Nobody may have pinned one."""
        assert not any(entry.users for entry in self._entries.values())
        for digest in list(self._entries):
            self._drop(digest)

    def check_integrity(self) -> None:
        """Assert that each row is free or has one owner."""
        own = [entry.rows for entry in self._entries.values()]
        every = np.concatenate([self._free[: self._num_free], *own])
        assert np.array_equal(np.sort(every), np.arange(self.num_rows))

    def _make_room(self, needed: int, kept: Iterable[bytes]) -> bool:
        """Drop images that nobody needs, least recently needed first, but for those that are `kept`."""
        droppable = [digest for digest, entry in self._entries.items() if not entry.users and digest not in set(kept)]
        if needed > self._num_free + sum(len(self._entries[digest].rows) for digest in droppable):
            return False
        for digest in droppable:
            if needed <= self._num_free:
                break
            self._drop(digest)
        return True

    def _drop(self, digest: bytes) -> None:
        rows = self._entries.pop(digest).rows
        self._free[self._num_free : self._num_free + len(rows)] = rows
        self._num_free += len(rows)


def _arranged(item: MediaItem, rows: Int32Array) -> Int32Array:
    return rows if item.arrangement is None else rows[item.arrangement.order]
