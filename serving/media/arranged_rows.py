"""Which rows of a tower's output a prompt has in place of an image, where that is not each once, in order."""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from jaxllm.serving.media.image_processors.base import ProcessedImage
from jaxllm.serving.media.image_processors.llava_next import LLaVANext, best_resolution


@dataclass(frozen=True, eq=False)
class ArrangedRows:
    """`rows` int32 [places in the prompt] of the tower's output, counted over all crops, which have `num_rows`."""

    rows: NDArray[np.int32]
    num_rows: int


@dataclass(frozen=True)
class LLaVANextRows:
    """Rows of LLaVA-NeXT and OneVision: the whole image, then the lines of its tiles together, without padding.

    A learned row ends each line. It comes first among the rows of a crop.
    """

    processor: LLaVANext
    side: tuple[int, int]
    """Rows and columns of patches of a crop."""
    added: int
    """To the features of the whole image, such as a class token; may be negative."""
    most_tiles: int | None
    """OneVision's tiles from which on features are reduced."""

    def count(self, image: ProcessedImage) -> int:
        """The number of tokens."""
        rows, columns = self._lines(image)
        return self.side[0] * self.side[1] + self.added + rows * columns + rows

    def arranged(self, image: ProcessedImage) -> ArrangedRows | None:
        """The rows that stand there; None where they are no rows of the tower."""
        grid_rows, grid_columns = self._grid(image)
        lines, columns = self._unpadded(image)
        if self.added or self._lines(image) != (lines, columns):
            return None
        crop_rows = self.side[0] * self.side[1]
        # The same number of lines is left out above and below, and likewise at the sides.
        top, left = (grid_rows * self.side[0] - lines) // 2, (grid_columns * self.side[1] - columns) // 2
        line, column = np.arange(top, top + lines)[:, None], np.arange(left, left + columns)
        crops = 1 + line // self.side[0] * grid_columns + column // self.side[1]
        inside = line % self.side[0] * self.side[1] + column % self.side[1]
        tiles = np.pad(crops * (1 + crop_rows) + 1 + inside, ((0, 0), (0, 1)))
        rows = np.concatenate([np.arange(1, 1 + crop_rows), tiles.ravel()]).astype(np.int32)
        return ArrangedRows(rows, (1 + grid_rows * grid_columns) * (1 + crop_rows))

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
        """Lines and columns in the prompt."""
        rows, columns = self._unpadded(image)
        if self.most_tiles is not None:
            ratio = math.sqrt(rows * columns / (self.most_tiles * self.side[0] ** 2))
            if ratio > 1.1:
                return int(rows // ratio), int(columns // ratio)
        return rows, columns
