"""Files whose bytes are used where they are: mapped into memory, which is the system's cache of the file.

Nothing is copied, and all processes that map a file share its pages.
"""

import math
import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

_POPULATE_READ = 22
"""MADV_POPULATE_READ of Linux 5.14, which Python does not name."""
_POPULATED_BYTES = 64 * 2**20
"""At a time: meanwhile no other thread runs Python."""


class MappedFile:
    """A file in memory, which nobody can write to there. Its arrays keep it mapped.

    The file may be removed meanwhile, but not be made shorter: whoever reads what is gone is killed by the system.
    """

    def __init__(self, path: Path) -> None:
        """Raises `OSError`, and `ValueError` for an empty file."""
        with path.open("rb") as file:
            self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        self._bytes = np.frombuffer(self._map, np.uint8)

    def array(self, start: int, shape: Sequence[int], dtype: np.dtype[Any]) -> np.ndarray:
        """The values from byte `start` on, read-only. On a CPU, JAX adopts those that are aligned without a copy."""
        return self._bytes[start : start + math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)

    def populate(self, start: int, stop: int) -> None:
        """Enter these bytes into the tables of the process now, rather than page by page as they are first used.

        Where the system's cache lacks them, they are read from the disk.
        """
        for begin in range(start - start % mmap.PAGESIZE, stop, _POPULATED_BYTES):
            end = min(stop, begin + _POPULATED_BYTES)
            try:
                self._map.madvise(_POPULATE_READ, begin, end - begin)
            except (AttributeError, OSError):
                self._bytes[begin : end : mmap.PAGESIZE].max()


def lies_in_file(array: jax.Array, ranges: Sequence[tuple[int, int]]) -> bool:
    """Whether all that this process has of an array lies in mapped files, whose addresses are `ranges`."""
    shards = array.addressable_shards
    if not ranges or any(shard.device.platform != "cpu" for shard in shards):
        return False
    places = [shard.data.unsafe_buffer_pointer() for shard in shards]
    return all(any(start <= place < stop for start, stop in ranges) for place in places)


def mapped_ranges(maps: Path = Path("/proc/self/maps")) -> list[tuple[int, int]]:
    """Addresses at which this process has files that nobody can write to; none where the system does not tell."""
    try:
        lines = maps.read_text().splitlines()
    except OSError:
        return []
    # Address, permissions ("s": shared), offset, device, inode, path.
    rows = [line.split(maxsplit=5) for line in lines]
    found = [row[0].split("-") for row in rows if row[1] == "r--s" and row[4] != "0"]
    return [(int(start, 16), int(stop, 16)) for start, stop in found]
