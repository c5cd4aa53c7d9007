"""The host's side of images and sound: crops and windows are sent to the devices, and encoded there."""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from jaxllm.errors import RequestError
from jaxllm.executor.device_calls import DeviceCalls
from jaxllm.executor.media_targets import BlendedRows
from jaxllm.executor.program_table import HEAR, HEAR_ROWS
from jaxllm.models.towers.plan import TowerPlan
from jaxllm.models.towers.sound import SoundPlan
from jaxllm.requests.media import FIELD, ImageCrop, MediaItem

Int32Array = npt.NDArray[np.int32]


class MediaCalls:
    """Encodes images, a crop at a time.

    A crop is always computed alone, by the program of the smallest size that holds it. So its rows do not depend on
    other images.
    """

    def __init__(self, run: Callable[..., Any], plan: TowerPlan) -> None:
        """`run` calls the program of a size, given that and what `encode_body` says of its inputs."""
        self._run, self._plan = run, plan

    def encode(self, item: MediaItem, rows: Int32Array) -> Iterator[int]:
        """Encode an image, and give the number of patches after each crop was sent.

        What is kept of it goes to `rows` int32 [num_kept] of the pool. Raises `RequestError` for one with sums of rows
        where the model has none.
        """
        counts = [self._plan.rows_of(len(crop.patches)) for crop in item.crops]
        firsts = np.cumsum([0, *counts])
        targets = self._targets(item, rows, int(firsts[-1]))
        for crop, first, count in zip(item.crops, firsts, counts, strict=False):
            self._encode(crop, targets(int(first), count))
            yield len(crop.patches)

    def _targets(self, item: MediaItem, rows: Int32Array, total: int) -> Callable[[int, int], Sequence[np.ndarray]]:
        """What of the pool a crop writes, from the first of its rows and their number; `total` are those of all."""
        arrangement = item.arrangement
        if self._plan.has_sums:
            return BlendedRows(item, rows, self._plan.targets_of(self._plan.most_patches)).of_crop
        if arrangement is None:
            return lambda first, count: [rows[first : first + count]]
        if arrangement.weights is not None:
            raise RequestError("this model has no sums of rows of an image", FIELD)
        every = np.full(total, -1, np.int32)
        every[arrangement.kept] = rows
        return lambda first, count: [every[first : first + count]]

    def _encode(self, crop: ImageCrop, targets: Sequence[np.ndarray]) -> None:
        count = len(crop.patches)
        size = next(each for each in self._plan.sizes if each >= count)
        patches, places = self._plan.whole(crop.patches), patch_places(crop.height, crop.width, self._plan.merge)
        if count < size:
            padding = ((0, size - count), (0, 0))
            patches, places = np.pad(patches, padding), np.pad(places, padding)
        rows, *others = targets
        rows = np.pad(rows, (0, self._plan.targets_of(size) - len(rows)), constant_values=-1)
        extent = np.array([crop.height, crop.width], np.int32)
        self._run(size, patches, places, extent, rows, *others)


class SoundCalls:
    """Encodes windows of sound, each alone."""

    def __init__(self, calls: DeviceCalls, first_page: int, pages_per_window: int) -> None:
        """Their pages are those from `first_page` on."""
        self._calls, self._first_page, self._pages_per_window = calls, first_page, pages_per_window

    def page_of(self, place: int) -> int:
        """The first page of the window in a place."""
        return self._first_page + place * self._pages_per_window

    def encode(self, item: MediaItem, place: int) -> int:
        """Encode a window, which goes to a place. Returns its number of frames."""
        assert item.features is not None
        self._calls.call(HEAR, np.ascontiguousarray(item.features, np.float32), np.int32(self.page_of(place)))
        return int(item.features.shape[1])


class SoundRowCalls:
    """Encodes windows of sound that become rows in place of tokens, each alone."""

    def __init__(self, calls: DeviceCalls, plan: SoundPlan) -> None:
        self._calls, self._plan = calls, plan

    def encode(self, item: MediaItem, rows: Int32Array) -> Iterator[int]:
        """Encode a window, whose rows go to `rows` int32 [num_kept] of the pool, and give its number of frames."""
        features, places = item.features, np.full(self._plan.most_rows, -1, np.int32)
        assert features is not None
        places[: len(rows)] = rows
        count = np.int32(item.num_frames)
        self._calls.call(HEAR_ROWS, np.ascontiguousarray(features, np.float32), count, places)
        yield int(features.shape[1])


@lru_cache(maxsize=64)
def patch_places(height: int, width: int, merge: int) -> Int32Array:
    """Where patches are in a crop, int32 [P, 2], in the order of `TowerPlan`: square by square of `merge` each way.

    There are as many as fill squares.
    """
    height, width = (-(-length // merge) * merge for length in (height, width))
    places = np.stack(np.meshgrid(np.arange(height), np.arange(width), indexing="ij"), axis=-1)
    squares = places.reshape(height // merge, merge, width // merge, merge, 2).transpose(0, 2, 1, 3, 4)
    return np.ascontiguousarray(squares.reshape(-1, 2), np.int32)
