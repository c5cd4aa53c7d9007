"""Which rows of a tower's output a prompt has in place of an image, where that is not each once, in order."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxllm.errors import RequestError
from jaxllm.serving.media.image_processors.base import ProcessedImage
from jaxllm.serving.media.image_processors.llava_next import LLaVANext, best_resolution


@dataclass(frozen=True, eq=False)
class ArrangedRows:
    """`rows` int32 [places in the prompt] of the tower's output, counted over all crops, which have `num_rows`.

    With `weights` float32 [places, 4], sums of four rows each: `rows` int32 [places, 4].
    """

    rows: NDArray[np.int32]
    num_rows: int
    weights: NDArray[np.float32] | None = None


@dataclass(frozen=True)
class LLaVANextRows:
    """Rows of LLaVA-NeXT and OneVision: the whole image, then the lines of its tiles together, without padding.

    A learned row ends each line. It is the first row of a crop, and `first` rows come before those of its patches.
    """

    processor: LLaVANext
    side: tuple[int, int]
    """Rows and columns of patches of a crop."""
    added: int
    """To the features of the whole image, such as a class token; may be negative."""
    most_tiles: int | None
    """OneVision's tiles from which on features are reduced."""
    first: int = 1

    def count(self, image: ProcessedImage) -> int:
        """The number of tokens."""
        rows, columns = self._lines(image)
        return self.side[0] * self.side[1] + self.added + rows * columns + rows

    def arranged(self, image: ProcessedImage) -> ArrangedRows | None:
        """The rows that stand there; None where they are no rows of the tower."""
        if self.added:
            return None
        grid_rows, grid_columns = self._grid(image)
        lines, columns = self._unpadded(image)
        crop_rows = self.side[0] * self.side[1]
        # The same number of lines is left out above and below, and likewise at the sides.
        top, left = (grid_rows * self.side[0] - lines) // 2, (grid_columns * self.side[1] - columns) // 2
        line, column = np.arange(top, top + lines)[:, None], np.arange(left, left + columns)
        crops = 1 + line // self.side[0] * grid_columns + column // self.side[1]
        inside = line % self.side[0] * self.side[1] + column % self.side[1]
        first, of_crop = self.first, self.first + crop_rows
        tiles = (crops * of_crop + first + inside).astype(np.int32)
        whole, total = np.arange(first, of_crop, dtype=np.int32), (1 + grid_rows * grid_columns) * of_crop
        wanted = self._lines(image)
        if wanted == (lines, columns):
            return ArrangedRows(np.concatenate([whole, np.pad(tiles, ((0, 0), (0, 1))).ravel()]), total)
        rows, weights = reduced(tiles, *wanted)
        # The rows that are no sums: the whole image's, and the one that ends a line.
        alone = np.array([1, 0, 0, 0], np.float32)
        ends = np.zeros((len(rows), 1, 4), np.int32), np.broadcast_to(alone, (len(rows), 1, 4))
        lines_of_rows = np.concatenate([rows, ends[0]], axis=1).reshape(-1, 4)
        lines_of_weights = np.concatenate([weights, ends[1]], axis=1).reshape(-1, 4)
        return ArrangedRows(
            np.concatenate([np.pad(whole[:, None], ((0, 0), (0, 3))), lines_of_rows]),
            total,
            np.concatenate([np.broadcast_to(alone, (crop_rows, 4)), lines_of_weights]),
        )

    def _grid(self, image: ProcessedImage) -> tuple[int, int]:
        """Rows and columns of tiles."""
        height, width = best_resolution((image.height, image.width), self.processor.resolutions)
        crop_height, crop_width = image.crops[0].shape[:2]
        return height // crop_height, width // crop_width

    def _unpadded(self, image: ProcessedImage) -> tuple[int, int]:
        """Lines of all tiles together, and columns, that are not of padding alone."""
        grid_rows, grid_columns = self._grid(image)
        rows, columns = self.side[0] * grid_rows, self.side[1] * grid_columns
        if image.width / image.height > columns / rows:
            new_rows = int(round(image.height * (columns / image.width), 7))
            return rows - (rows - new_rows) // 2 * 2, columns
        new_columns = int(round(image.width * (rows / image.height), 7))
        return rows, columns - (columns - new_columns) // 2 * 2

    def _lines(self, image: ProcessedImage) -> tuple[int, int]:
        """Lines and columns in the prompt. Raises `RequestError` where reducing leaves nothing of an image."""
        rows, columns = self._unpadded(image)
        if self.most_tiles is None:
            return rows, columns
        ratio = math.sqrt(rows * columns / (self.most_tiles * self.side[0] ** 2))
        if ratio <= 1.1:
            return rows, columns
        if min(rows, columns) < ratio:
            raise RequestError(
                f"an image of {image.width} x {image.height} pixels is too narrow: of {rows} x {columns} rows that the "
                f"model makes of it, none would be left",
                "image_url",
            )
        return int(rows // ratio), int(columns // ratio)


@dataclass(frozen=True)
class PhiRows:
    """Rows of Phi-3-Vision and Phi-4 multimodal: the lines of all crops together, then those of the first, the whole.

    The first of two learned rows ends each line, the second stands between. They come first among the rows of a crop.
    """

    side: int
    """Pixels each way of what becomes a row."""

    def count(self, image: ProcessedImage) -> int:
        """The number of tokens."""
        return len(self.arranged(image).rows)

    def arranged(self, image: ProcessedImage) -> ArrangedRows:
        """The rows that stand there."""
        (whole, *tiles), total = _squares(image, self.side, 2)
        together, alone = (_ended(each) for each in (_lines(tiles, image.columns), whole))
        return ArrangedRows(np.concatenate([together, [1], alone]).astype(np.int32), total)


@dataclass(frozen=True)
class SeparatedRows:
    """Rows of DeepSeek-OCR: those of tiles, of the whole image, which is the last crop, and a learned one.

    Where it `ends_lines`, another learned row ends each line, and the lines are those of all tiles together. It comes
    first among the rows of a crop, then the other.
    """

    side: int
    """Pixels each way of what becomes a row."""
    ends_lines: bool

    def count(self, image: ProcessedImage) -> int:
        """The number of tokens."""
        return len(self.arranged(image).rows)

    def arranged(self, image: ProcessedImage) -> ArrangedRows:
        """The rows that stand there."""
        separator = int(self.ends_lines)
        squares, total = _squares(image, self.side, separator + 1)
        parts = [square.ravel() for square in squares]
        if self.ends_lines:
            *tiles, whole = squares
            parts = [_ended(_lines(tiles, image.columns))] if tiles else []
            parts.append(_ended(whole))
        return ArrangedRows(np.concatenate([*parts, [separator]]).astype(np.int32), total)


def _squares(image: ProcessedImage, side: int, first: int) -> tuple[list[NDArray[np.int64]], int]:
    """The rows of each crop, int64 [lines, columns], one for each square of `side` pixels, and how many there are.

    `first` others come before them in each crop.
    """
    sizes = [tuple(-(-length // side) for length in crop.shape[:2]) for crop in image.crops]
    starts = np.cumsum([0, *(first + lines * columns for lines, columns in sizes)])
    squares = [
        start + first + np.arange(lines * columns).reshape(lines, columns)
        for start, (lines, columns) in zip(starts, sizes, strict=False)
    ]
    return squares, int(starts[-1])


def _lines(tiles: list[NDArray[np.int64]], columns: int) -> NDArray[np.int64]:
    """Tiles as one picture, with `columns` of them side by side."""
    return np.vstack([np.hstack(tiles[first : first + columns]) for first in range(0, len(tiles), columns)])


def _ended(lines: NDArray[np.int64]) -> NDArray[np.int64]:
    """All lines, with row 0 after each."""
    return np.pad(lines, ((0, 0), (0, 1))).ravel()


def reduced(rows: NDArray[np.int32], height: int, width: int) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """A picture of `rows` int32 [h, w] with fewer rows and columns, bilinearly as torch does it without antialiasing.

    Gives the four rows of each place, int32 [height, width, 4], and their weights, float32 of the same shape.
    """
    (top, bottom, down), (left, right, across) = (
        _neighbours(*each) for each in zip(rows.shape, (height, width), strict=True)
    )
    pairs = [(top, left), (top, right), (bottom, left), (bottom, right)]
    sources = np.stack([rows[np.ix_(*pair)] for pair in pairs], axis=-1)
    down, across = down[:, None], across[None]
    weights = [(1 - down) * (1 - across), (1 - down) * across, down * (1 - across), down * across]
    return sources, np.stack(weights, axis=-1).astype(np.float32)


def _neighbours(length: int, wanted: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """The two elements that each of fewer ones lies between, and the weight of the second."""
    scale = np.float32(length / wanted)
    place = np.maximum((np.arange(wanted, dtype=np.float32) + np.float32(0.5)) * scale - np.float32(0.5), 0)
    first = place.astype(np.int64)
    return first, np.minimum(first + 1, length - 1), place - first.astype(np.float32)
