"""GOT-OCR2, InternVL and Aya Vision: tiles of the grid that fits an image's shape best, and then the whole."""

from dataclasses import dataclass
from typing import ClassVar, Self

from PIL import Image

from jaxllm.serving.media.image_processors.arithmetic import resize, tiles
from jaxllm.serving.media.image_processors.base import Bytes, ImageLimits, Normalisation, ProcessedImage
from jaxllm.serving.media.image_processors.normalising import read_normalisation, require_rgb_and_resize
from jaxllm.serving.media.image_processors.settings import CLIP_MEAN, CLIP_STD, SQUARE, Settings


@dataclass(frozen=True)
class GotOcr2:
    """`GotOcr2ImageProcessor`."""

    height: int
    width: int
    grids: tuple[tuple[int, int], ...]
    """(columns, rows) to choose from; only (1, 1) where images are not cut."""
    resample: Image.Resampling
    normalisation: Normalisation

    REQUEST_FIELDS: ClassVar[tuple[str, ...]] = ("crop_to_patches", "min_patches", "max_patches")

    @classmethod
    def read(cls, settings: Settings) -> Self:
        """Read a configuration. Raises the error of `settings`."""
        require_rgb_and_resize(settings)
        settings.require("do_center_crop", False, False)
        settings.ignore("do_pad", "crop_size")
        size = settings.edges("size", {"height": 384, "width": 384}, (SQUARE,), square=False)
        low, high = settings.integer("min_patches", 1, 1, 256), settings.integer("max_patches", 12, 1, 256)
        if low > high:
            raise settings.fail(f"min_patches={low} is larger than max_patches={high}")
        cuts = settings.flag("crop_to_patches", False) and high > 1
        return cls(
            size["height"],
            size["width"],
            grids(low, high) if cuts else ((1, 1),),
            settings.resample(Image.Resampling.BICUBIC),
            read_normalisation(settings, CLIP_MEAN, CLIP_STD),
        )

    def process(self, image: Bytes) -> ProcessedImage:
        """Process uint8 [height, width, 3]: tiles row by row, then the whole image; or only that."""
        given_height, given_width = image.shape[:2]
        columns, rows = self._grid(given_height, given_width)
        whole = resize(image, self.height, self.width, self.resample)
        if columns == rows == 1:
            return ProcessedImage((whole,), given_height, given_width)
        resized = resize(image, self.height * rows, self.width * columns, self.resample)
        crops = (*tiles(resized, self.height, self.width), whole)
        return ProcessedImage(crops, given_height, given_width, rows, columns)

    def limits(self, patch_size: int) -> ImageLimits:
        """The tiles of the largest grid, and the whole image."""
        most = max(columns * rows for columns, rows in self.grids)
        crops = most + 1 if most > 1 else 1
        return ImageLimits(crops, crops * (self.height // patch_size) * (self.width // patch_size))

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        return nearest_grid(self.grids, height, width, self.height * self.width)


def nearest_grid(grids: tuple[tuple[int, int], ...], height: int, width: int, area: int) -> tuple[int, int]:
    """The (columns, rows) nearest to the image's shape; of equals the last that the image has pixels for.

    `area` is of a tile.
    """
    ratio, best, least = width / height, (1, 1), float("inf")
    for columns, rows in grids:
        difference = abs(ratio - columns / rows)
        fills = width * height > 0.5 * area * columns * rows
        if difference < least or (difference == least and fills):
            best, least = (columns, rows), difference
    return best


def grids(low: int, high: int) -> tuple[tuple[int, int], ...]:
    """All (columns, rows) of so many tiles, the smallest first."""
    every = [
        (columns, rows)
        for columns in range(1, high + 1)
        for rows in range(1, high // columns + 1)
        if columns * rows >= low
    ]
    return tuple(sorted(every, key=lambda grid: grid[0] * grid[1]))
