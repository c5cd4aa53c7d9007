"""Images in a prompt: their pixels, and the tokens whose place they take. Or the sound that a prompt is about."""

from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Final, Self

import numpy as np
import numpy.typing as npt

from jaxllm.errors import RequestError
from jaxllm.requests.spans import NO_SPANS, SpanKind, find_spans, span_keys

if TYPE_CHECKING:
    from hashlib import _Hash as Hash

FIELD: Final = "multi_modal_data"
"""The name that requests give them."""

MOST_SOURCES: Final = 4
"""Most rows of crops whose sum may be one row in a prompt."""

Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False, slots=True)
class ImageCrop:
    """A part of an image that the model sees alone: `patches` uint8 [P, bytes], and how many there are each way.

    They come in the order of the model's `TowerPlan`.
    """

    patches: npt.NDArray[np.uint8]
    height: int
    width: int


@dataclass(frozen=True, eq=False, slots=True)
class Arrangement:
    """The rows of an image's crops as a prompt has them, where that is not each row once, in order.

    `kept` int32 [K] are those that it has, ascending, counted over one crop after the other. `order` int32 [rows in the
    prompt] says which of the kept stands in each place. With `weights` float32 [K, MOST_SOURCES], each of the kept is a
    sum of rows, `kept` int32 [K, MOST_SOURCES], times these.
    """

    kept: Int32Array
    order: Int32Array
    weights: npt.NDArray[np.float32] | None = None

    @classmethod
    def of(cls, rows: Int32Array, weights: npt.NDArray[np.float32] | None = None) -> Self:
        """For a prompt that has these rows of the crops, int32 [rows in the prompt].

        With weights, sums of `rows` int32 [rows in the prompt, MOST_SOURCES].
        """
        if weights is None:
            kept, order = np.unique(rows, return_inverse=True)
            return cls(kept.astype(np.int32), order.astype(np.int32))
        both = np.concatenate([rows, weights.view(np.int32)], axis=1)
        sums, order = np.unique(both, axis=0, return_inverse=True)
        kept, found = np.ascontiguousarray(sums[:, :MOST_SOURCES]), np.ascontiguousarray(sums[:, MOST_SOURCES:])
        return cls(kept, order.reshape(-1).astype(np.int32), found.view(np.float32))

    def update(self, digest: "Hash") -> None:
        """Add to the digest what an image's rows depend on here."""
        # A crop begins with its height: no bytes of pixels are taken for an arrangement.
        digest.update(np.array([-1, len(self.kept), len(self.order), self.weights is not None], np.int64).data)
        for array in (self.kept, self.order, self.weights):
            if array is not None:
                digest.update(array.data)


@dataclass(frozen=True, eq=False, slots=True)
class MediaItem:
    """An image: its crops, the rows of them that the engine keeps, and the sha256 of what these are made of.

    Or a window of sound: its log-mel `features` float32 [bins, frames], where the first `num_frames` are sound, see
    `SoundPlan`. The engine keeps its rows, or, with cross attention, all as one.

    Or a video, with a crop for each patch in time: `times` has the position in time of each, from the first on.
    """

    digest: bytes
    crops: tuple[ImageCrop, ...]
    num_kept: int
    arrangement: Arrangement | None = None
    features: npt.NDArray[np.float32] | None = None
    num_frames: int = 0
    times: tuple[int, ...] = ()

    @classmethod
    def of(cls, crops: tuple[ImageCrop, ...], patches_per_row: int) -> Self:
        """An image of these crops. So many patches become one row, each once and in order."""
        return cls.with_rows(crops, sum(len(crop.patches) for crop in crops) // patches_per_row)

    @classmethod
    def with_rows(
        cls,
        crops: tuple[ImageCrop, ...],
        num_rows: int,
        arrangement: Arrangement | None = None,
        times: tuple[int, ...] = (),
    ) -> Self:
        """An image of crops that become so many rows. The prompt has them as in `arrangement`, or once and in order.

        Or a video, with the `times` of its crops.
        """
        digest = sha256()
        for crop in crops:
            digest.update(np.array([crop.height, crop.width], np.int64).tobytes())
            digest.update(np.ascontiguousarray(crop.patches).data)
        if times:
            # A crop begins with its height: nothing else begins so.
            digest.update(np.array([-2, *times], np.int64).data)
        if arrangement is None:
            return cls(digest.digest(), crops, num_rows, times=times)
        arrangement.update(digest)
        return cls(digest.digest(), crops, len(arrangement.kept), arrangement, times=times)

    @classmethod
    def of_sound(cls, features: npt.NDArray[np.float32], num_frames: int | None = None, num_rows: int = 1) -> Self:
        """A window of sound that becomes so many rows; all of its frames are sound unless `num_frames` are fewer."""
        count = features.shape[1] if num_frames is None else num_frames
        digest = sha256(np.array([*features.shape, count], np.int64).tobytes())
        digest.update(np.ascontiguousarray(features).data)
        return cls(digest.digest(), (), num_rows, features=features, num_frames=count)

    @property
    def num_rows(self) -> int:
        """The places in a prompt that the image takes."""
        return self.num_kept if self.arrangement is None else len(self.arrangement.order)


@dataclass(frozen=True, eq=False, slots=True)
class PromptMedia:
    """The images of a prompt, in order, and the `places` in it that their rows take, int32 [rows of all].

    `page_keys` has for each page of the prompt what it depends on besides its token ids: the digest of each image with
    a row in it, and which of its rows is the first there, and that of each span. `spans` has begin and end of each,
    int32 [spans, 2].
    """

    items: tuple[MediaItem, ...]
    places: Int32Array
    page_keys: tuple[bytes, ...]
    spans: npt.NDArray[np.int32] = field(default_factory=lambda: NO_SPANS)

    @classmethod
    def of(
        cls,
        items: tuple[MediaItem, ...],
        token_ids: np.ndarray,
        token_id: int | tuple[int, ...],
        block_size: int,
        spans: SpanKind | None = None,
    ) -> Self:
        """Images for the places of `token_id`, or of several, in a prompt, int32 [length], in pages of so many tokens.

        `spans` says which tokens see one another.

        Raises `RequestError` where there are more places than rows, or fewer.
        """
        places = np.flatnonzero(np.isin(token_ids, token_id)).astype(np.int32)
        total = sum(item.num_rows for item in items)
        if len(places) != total:
            if any(item.features is not None for item in items):
                raise RequestError(f"the prompt has {len(places)} sound tokens, but its sound takes {total}", FIELD)
            raise RequestError(
                f"the prompt has {len(places)} image tokens, but its {len(items)} images take {total}", FIELD
            )
        num_pages, found = -(-len(token_ids) // block_size), find_spans(spans, places, len(token_ids))
        keys = _page_keys(items, places, num_pages, block_size)
        if len(found):
            more = span_keys(found, token_ids, _extents(items, places), num_pages, block_size)
            keys = tuple(key + each for key, each in zip(keys, more, strict=True))
        return cls(items, places, keys, found)

    @classmethod
    def of_sound(cls, item: MediaItem) -> Self:
        """The window of sound that a prompt is about: it takes no place, and all pages depend on it."""
        # A page's digest is also of the page before it.
        return cls((item,), np.zeros(0, np.int32), (item.digest,))

    @property
    def has_sound(self) -> bool:
        """Whether there is a window of sound among them."""
        return any(item.features is not None for item in self.items)

    @property
    def num_rows(self) -> int:
        """Rows of all images, each as often as it occurs."""
        return len(self.places)

    @property
    def end(self) -> int:
        """The place after the last row."""
        return int(self.places[-1]) + 1 if len(self.places) else 0

    def page_key(self, number: int) -> bytes:
        """What the prompt's page of this number depends on besides its token ids."""
        return self.page_keys[number] if number < len(self.page_keys) else b""


def _page_keys(items: tuple[MediaItem, ...], places: Int32Array, num_pages: int, block_size: int) -> tuple[bytes, ...]:
    keys = [b""] * num_pages
    first = 0
    for item in items:
        pages = places[first : first + item.num_rows] // block_size
        # The first row of the image in each of its pages.
        for row in np.flatnonzero(np.diff(pages, prepend=-1)).tolist():
            keys[pages[row]] += item.digest + row.to_bytes(8, "little")
        first += item.num_rows
    return tuple(keys)


def _extents(items: tuple[MediaItem, ...], places: npt.NDArray[np.int32]) -> list[tuple[bytes, int, int]]:
    """The digest of each image with rows, and the places of its first and last row."""
    ends = np.cumsum([item.num_rows for item in items]).tolist()
    pairs = zip(items, ends, strict=True)
    return [
        (item.digest, int(places[end - item.num_rows]), int(places[end - 1])) for item, end in pairs if item.num_rows
    ]
