"""Which rows of the pool a crop of an image writes.

Axis letters: K rows that are kept of an image, M rows that a crop may have a part in.
"""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from jaxllm.requests.media import MOST_SOURCES, Int32Array, MediaItem

FloatArray = npt.NDArray[np.float32]


class Blend(NamedTuple):
    """What a crop adds to rows of the pool: to each the sum of a few of its own rows, times their weights."""

    rows: Int32Array
    """int32 [M]: rows of the pool; -1 is padding."""
    is_begun: npt.NDArray[np.bool_]
    """bool [M]: whether another crop has a part in the row, and wrote it before."""
    sources: Int32Array
    """int32 [M, MOST_SOURCES]: rows of the crop."""
    weights: FloatArray
    """float32 [M, MOST_SOURCES]."""


class BlendedRows:
    """The rows of an image; some may be sums of rows of several crops."""

    def __init__(self, item: MediaItem, rows: Int32Array, size: int) -> None:
        """For `rows` int32 [num_kept] of the pool; a crop has a part in at most `size`."""
        arrangement, count = item.arrangement, item.num_kept
        sources = np.arange(count, dtype=np.int32) if arrangement is None else arrangement.kept
        weights = None if arrangement is None else arrangement.weights
        self._rows, self._size, self._is_begun = rows, size, np.zeros(count, np.bool_)
        if weights is None:
            alone = ((0, 0), (0, MOST_SOURCES - 1))
            sources = np.pad(sources[:, None], alone)
            weights = np.pad(np.ones((count, 1), np.float32), alone)
        self._sources, self._weights = sources, weights

    def of_crop(self, first: int, count: int) -> Blend:
        """What the crop adds whose `count` rows are those from `first` on, counted over all crops of the image."""
        is_own = (self._sources >= first) & (self._sources < first + count) & (self._weights != 0)
        touched = np.flatnonzero(is_own.any(axis=1))
        assert len(touched) <= self._size
        own = is_own[touched]
        padding = (0, self._size - len(touched))
        blend = Blend(
            np.pad(self._rows[touched], padding, constant_values=-1),
            np.pad(self._is_begun[touched], padding),
            np.pad(np.where(own, self._sources[touched] - first, 0).astype(np.int32), (padding, (0, 0))),
            np.pad(np.where(own, self._weights[touched], 0).astype(np.float32), (padding, (0, 0))),
        )
        self._is_begun[touched] = True
        return blend
