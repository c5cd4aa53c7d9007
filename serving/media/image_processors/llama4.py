"""Llama 4: an image on the smallest canvas of whole tiles that keeps its pixels, and then the whole in one tile."""

from dataclasses import dataclass, replace
from typing import ClassVar, Self

import numpy as np
from PIL import Image

from jaxllm.serving.media.image_processors.arithmetic import resize, tiles
from jaxllm.serving.media.image_processors.base import CHANNELS, Bytes, ImageLimits, Normalisation, ProcessedImage
from jaxllm.serving.media.image_processors.normalising import read_normalisation, require_rgb_and_resize
from jaxllm.serving.media.image_processors.settings import IMAGENET, SQUARE, Settings


@dataclass(frozen=True)
class Llama4:
    """`Llama4ImageProcessor`."""

    tile: int
    grids: tuple[tuple[int, int], ...]
    """(rows, columns) to choose from."""
    enlarges: bool
    resample: Image.Resampling
    normalisation: Normalisation

    REQUEST_FIELDS: ClassVar[tuple[str, ...]] = ("max_patches", "resize_to_max_canvas")

    @classmethod
    def read(cls, settings: Settings) -> Self:
        """Read a configuration. Raises the error of `settings`."""
        require_rgb_and_resize(settings)
        settings.require("do_center_crop", False, False)
        settings.ignore("do_pad", "crop_size")
        size = settings.edges("size", {"height": 336, "width": 336}, (SQUARE,))
        if size["height"] != size["width"]:
            raise settings.fail("size must be square")
        most = settings.integer("max_patches", 16, 1, 256)
        found = read_normalisation(settings, IMAGENET, IMAGENET)
        return cls(
            size["height"],
            tuple((rows, columns) for rows in range(1, most + 1) for columns in range(1, most // rows + 1)),
            settings.flag("resize_to_max_canvas", False),
            settings.resample(Image.Resampling.BILINEAR),
            replace(found, rounds=found.rescale_factor is not None and found.mean is not None),
        )

    def process(self, image: Bytes) -> ProcessedImage:
        """Process uint8 [height, width, 3]: tiles row by row, then the whole image; or only one tile."""
        given = image.shape[0], image.shape[1]
        grid = rows, columns = self._grid(*given)
        canvas = np.zeros((rows * self.tile, columns * self.tile, CHANNELS), np.uint8)
        inner = resize(image, *self._inside(given, grid), self.resample)
        canvas[: inner.shape[0], : inner.shape[1]] = inner
        crops = tiles(canvas, self.tile, self.tile)
        if len(crops) > 1:
            crops = (*crops, resize(image, self.tile, self.tile, self.resample))
        return ProcessedImage(crops, *given, rows, columns)

    def limits(self, patch_size: int) -> ImageLimits:
        """The tiles of the largest grid, and the whole image."""
        most = max(rows * columns for rows, columns in self.grids)
        crops = most + 1 if most > 1 else 1
        return ImageLimits(crops, crops * (self.tile // patch_size) ** 2)

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        """The grid that needs least enlarging, or else least shrinking; of equals the smallest."""
        sides = np.array(self.grids, np.float32) * self.tile
        # As torch divides integers.
        scales = (sides / np.array([height, width], np.float32)).min(axis=1)
        larger = scales[scales >= 1]
        if not larger.size:
            wanted = scales.max()
        else:
            wanted = larger.max() if self.enlarges else larger.min()
        fitting = [grid for grid, scale in zip(self.grids, scales, strict=True) if scale == wanted]
        return min(fitting, key=lambda grid: grid[0] * grid[1])

    def _inside(self, given: tuple[int, int], grid: tuple[int, int]) -> tuple[int, int]:
        """Height and width of the image on its canvas: not more than it had, unless that is less than a tile."""
        most = [count * self.tile for count in grid]
        if not self.enlarges:
            most = [min(max(side, self.tile), bound) for side, bound in zip(given, most, strict=True)]
        down, across = most[0] / given[0], most[1] / given[1]
        if across < down:
            return max(min(int(given[0] * across), most[0]), 1), most[1]
        return most[0], max(min(int(given[1] * down), most[1]), 1)
