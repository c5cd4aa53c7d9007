"""Copies of KV pages and recurrent states in memory of the host, found by digest; bounded, least recently used first.

All that is kept of one digest, in any page table, is evicted together: a part of it is of no use. Who fills and
reads copies does so in threads of its own, between `begin_...` and `end_...`; everything here is called by one thread.
"""

import mmap
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import numpy.typing as npt

from jaxllm.kv.events import About

Bytes = npt.NDArray[np.uint8]


@dataclass(eq=False, slots=True)
class HostCopy:
    """What a page or a state holds, in `slots` of a `HostPool`: `size` bytes, the last slot may be partly used.

    `part` is the number of the page table; states have the number after the last one.
    """

    digest: bytes
    part: int
    slots: list[int]
    size: int
    checksum: int = 0
    about: About | None = None
    """What a page is made of, where that is told to anybody."""
    state: Literal["writing", "ready", "gone"] = "writing"
    readers: int = field(default=0, repr=False)


class HostPool:
    """`num_slots` of `slot_bytes` each, which are allocated from the system when they are first written."""

    def __init__(self, num_slots: int, slot_bytes: int) -> None:
        self.num_slots, self.slot_bytes = num_slots, slot_bytes
        self._memory: Bytes = allocate(num_slots * slot_bytes).reshape(num_slots, slot_bytes)
        self._free = list(range(num_slots))[::-1]
        self._entries: OrderedDict[bytes, dict[int, HostCopy]] = OrderedDict()  # least recently used first
        self._busy_gone: set[int] = set()  # slots of copies that are gone, while somebody still reads or writes them
        self.on_ready: Callable[[HostCopy], None] | None = None
        self.on_gone: Callable[[HostCopy], None] | None = None
        """Hear of copies that can be found from now on, and that cannot any more, if anybody is to."""

    def __len__(self) -> int:
        """How many digests it knows."""
        return len(self._entries)

    @property
    def usage(self) -> float:
        """Share of the slots that are used, 0 to 1."""
        return 1 - len(self._free) / max(self.num_slots, 1)

    def has(self, digest: bytes, part: int) -> bool:
        """Whether there is a complete copy."""
        copy = self._copy(digest, part)
        return copy is not None and copy.state == "ready"

    def knows(self, digest: bytes, part: int) -> bool:
        """Whether there is a copy, or will be."""
        return self._copy(digest, part) is not None

    def _copy(self, digest: bytes, part: int) -> HostCopy | None:
        entry = self._entries.get(digest)
        return None if entry is None else entry.get(part)

    def touch(self, digests: Iterable[bytes]) -> None:
        """These were used now, the last one last."""
        for digest in digests:
            if digest in self._entries:
                self._entries.move_to_end(digest)

    def begin_write(self, digest: bytes, part: int, size: int) -> HostCopy | None:
        """Room for a new copy of `size` bytes, to be filled by `fill`; None where there is no room.

        Others are evicted for it, unless they are being read or written.
        """
        assert not self.knows(digest, part)
        slots = self._take(-(-size // self.slot_bytes), digest)
        if slots is None:
            return None
        copy = HostCopy(digest, part, slots, size)
        self._entries.setdefault(digest, {})[part] = copy
        self._entries.move_to_end(digest)
        return copy

    def _take(self, count: int, keep: bytes) -> list[int] | None:
        if count > self.num_slots:
            return None
        victims, found = list[bytes](), len(self._free)
        for digest in self._entries if count > found else ():
            copies = self._of(digest)
            if digest != keep and all(copy.state == "ready" and not copy.readers for copy in copies):
                victims.append(digest)
                found += sum(len(copy.slots) for copy in copies)
            if count <= found:
                break
        if count > found:
            return None
        for digest in victims:
            self._forget(digest)
        return [self._free.pop() for _ in range(count)]

    def _of(self, digest: bytes) -> list[HostCopy]:
        return list(self._entries[digest].values())

    def fill(self, copy: HostCopy, data: Bytes) -> int:
        """Write the bytes of a copy that is being written. Returns their checksum. Any thread may call it."""
        for index, slot in enumerate(copy.slots):
            part = data[index * self.slot_bytes : (index + 1) * self.slot_bytes]
            self._memory[slot, : len(part)] = part
        return checksum(copy, data)

    def end_write(self, copy: HostCopy, found: int | None) -> None:
        """A copy is filled and has this checksum; None: filling it failed, and it is forgotten."""
        if copy.state == "gone":
            self._let_go(copy)
        elif found is None:
            self._discard(copy, is_busy=False)
        else:
            copy.checksum, copy.state = found, "ready"
            if self.on_ready is not None:
                self.on_ready(copy)

    def begin_read(self, digest: bytes, part: int) -> HostCopy:
        """A copy that there is; it stays until `end_read`."""
        copy = self._copy(digest, part)
        assert copy is not None
        assert copy.state == "ready"
        copy.readers += 1
        return copy

    def read(self, copy: HostCopy, into: Bytes) -> bool:
        """Bring the bytes of a copy that is being read `into` an array. False if they are not what was written.

        Any thread may call it.
        """
        for index, slot in enumerate(copy.slots):
            part = into[index * self.slot_bytes : (index + 1) * self.slot_bytes]
            part[:] = self._memory[slot, : len(part)]
        return checksum(copy, into) == copy.checksum

    def end_read(self, copy: HostCopy, *, is_intact: bool = True) -> None:
        """A copy is not read any more. One that is not intact is forgotten."""
        copy.readers -= 1
        if copy.state == "gone":
            self._let_go(copy)
        elif not is_intact:
            self._discard(copy, is_busy=copy.readers > 0)

    def clear(self) -> None:
        """Forget everything, without a word to `on_gone`. Slots that are read or written are free once that is over."""
        on_gone, self.on_gone = self.on_gone, None
        for digest in list(self._entries):
            self._forget(digest)
        self.on_gone = on_gone

    def _forget(self, digest: bytes) -> None:
        for copy in self._of(digest):
            self._discard(copy, is_busy=copy.state == "writing" or copy.readers > 0)

    def _discard(self, copy: HostCopy, *, is_busy: bool) -> None:
        entry = self._entries[copy.digest]
        del entry[copy.part]
        if not entry:
            del self._entries[copy.digest]
        if copy.state == "ready" and self.on_gone is not None:
            self.on_gone(copy)
        copy.state = "gone"
        if is_busy:
            self._busy_gone.update(copy.slots)
        else:
            self._free += copy.slots

    def _let_go(self, copy: HostCopy) -> None:
        if not copy.readers:
            self._busy_gone.difference_update(copy.slots)
            self._free += copy.slots

    def check_integrity(self) -> None:
        """Assert that each slot is exactly one of free, used by one copy, and still busy after its copy is gone."""
        used = [slot for entry in self._entries.values() for copy in entry.values() for slot in copy.slots]
        assert sorted([*self._free, *used, *self._busy_gone]) == list(range(self.num_slots))
        for digest, entry in self._entries.items():
            assert entry, "a digest without copies"
            for part, copy in entry.items():
                assert (copy.digest, copy.part) == (digest, part)
                assert copy.state != "gone"


def allocate(size: int) -> Bytes:
    """Zeros of the host, uint8 [size], which begin at a page of its memory and take none before they are written."""
    return np.frombuffer(mmap.mmap(-1, max(size, 1)), np.uint8)[:size]


def checksum(copy: HostCopy, data: Bytes) -> int:
    """CRC-32 of what a copy is of, and of its bytes: so a copy in another's place is noticed, too."""
    return crc(data, zlib.crc32(copy.digest + copy.part.to_bytes(2, "little")))


def crc(data: Bytes, start: int = 0) -> int:
    """CRC-32 of bytes. Other threads run meanwhile."""
    return zlib.crc32(data.data, start)
