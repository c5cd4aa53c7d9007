"""Writing of one safetensors file, tensor by tensor: the library's writer wants all of a file's tensors in memory.

Format: https://github.com/huggingface/safetensors (8 bytes little-endian length, JSON header, data).
"""

import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from jaxllm.models.checkpoint.safetensors_file import ALIGNMENT

_SYNC_BYTES = 256 * 2**20
"""Are brought to the disk at once: all of a large file together may take minutes, in which nobody hears of it."""


@dataclass(frozen=True)
class Entry:
    """A tensor as a header has it; `dtype` is safetensors' name of its type."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int

    @property
    def item_size(self) -> int:
        """Bytes of a value."""
        return self.num_bytes // max(1, math.prod(self.shape))


def write_file(path: Path, entries: Sequence[Entry], arrays: Iterable[tuple[str, np.ndarray]]) -> None:
    """Write a file of these tensors, whose arrays come in any order. Raises `OSError`.

    A tensor's bytes may come in pieces, one after another.

    `path` must not be there yet. When this returns, all is on the disk. Tensors whose size is a multiple of `ALIGNMENT`
    lie at multiples of it in the file, so that whoever maps the file can use them in place.
    """
    # Torch reads no tensor whose place is no multiple of its values' size.
    ordered = sorted(entries, key=lambda entry: (entry.num_bytes % ALIGNMENT > 0, -entry.item_size))
    places: dict[str, tuple[int, int]] = {}
    end = 0
    for entry in ordered:
        places[entry.name] = end, end + entry.num_bytes
        end += entry.num_bytes
    text = _header(ordered, places)
    with path.open("xb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        unsynced = 0
        for name, array in arrays:
            start, stop = places[name]
            data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            assert data.size <= stop - start, name
            file.seek(8 + len(text) + start)
            file.write(data.data)
            unsynced += data.size
            if unsynced >= _SYNC_BYTES:
                file.flush()
                os.fsync(file.fileno())
                unsynced = 0
            places[name] = start + data.size, stop
        assert all(start == stop for start, stop in places.values()), places
        file.flush()
        os.fsync(file.fileno())


def _header(entries: Sequence[Entry], places: Mapping[str, tuple[int, int]]) -> bytes:
    # Transformers rejects files that do not say this.
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    for entry in entries:
        header[entry.name] = {"dtype": entry.dtype, "shape": entry.shape, "data_offsets": places[entry.name]}
    text = json.dumps(header, separators=(",", ":")).encode()
    return text + b" " * (-(8 + len(text)) % ALIGNMENT)
