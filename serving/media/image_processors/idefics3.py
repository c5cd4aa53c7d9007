"""Idefics3 and SmolVLM: an image of whole tiles, cut into them, and the same image in one tile."""

import math
from dataclasses import dataclass
from typing import ClassVar, Final, Self

from PIL import Image

from jaxllm.serving.media.image_processors.arithmetic import resize, tiles
from jaxllm.serving.media.image_processors.base import Bytes, ImageLimits, Normalisation, ProcessedImage
from jaxllm.serving.media.image_processors.normalising import read_normalisation, require_rgb_and_resize
from jaxllm.serving.media.image_processors.settings import IMAGENET, LONGEST, SQUARE, Settings

LONGEST_SIDE: Final = 4096
"""Pixels, whatever the configuration says."""


@dataclass(frozen=True)
class Idefics3:
    """`Idefics3ImageProcessor` and `SmolVLMImageProcessor`."""

    size: dict[str, int]
    tile: int
    splits: bool
    resample: Image.Resampling
    normalisation: Normalisation

    REQUEST_FIELDS: ClassVar[tuple[str, ...]] = ("size", "do_image_splitting")

    @classmethod
    def read(cls, settings: Settings) -> Self:
        """Read a configuration. Raises the error of `settings`."""
        require_rgb_and_resize(settings)
        # Tiles of one image have one size: there is nothing to pad.
        settings.ignore("do_pad")
        return cls(
            settings.edges("size", {"longest_edge": 4 * 364}, (LONGEST, SQUARE), square=False),
            settings.edges("max_image_size", {"longest_edge": 364}, (LONGEST,))["longest_edge"],
            settings.flag("do_image_splitting", True),
            settings.resample(Image.Resampling.LANCZOS),
            read_normalisation(settings, IMAGENET, IMAGENET),
        )

    def process(self, image: Bytes) -> ProcessedImage:
        """Process uint8 [height, width, 3]: tiles row by row, then the whole image; or only that, if not split."""
        given_height, given_width = image.shape[:2]
        image = resize(image, *self._first_size(given_height, given_width), self.resample)
        if not self.splits:
            return ProcessedImage((resize(image, self.tile, self.tile, self.resample),), given_height, given_width)
        image = resize(image, *self._whole_tiles(*image.shape[:2]), self.resample)
        rows, columns = image.shape[0] // self.tile, image.shape[1] // self.tile
        if rows == columns == 1:
            return ProcessedImage((image,), given_height, given_width)
        whole = resize(image, self.tile, self.tile, self.resample)
        crops = (*tiles(image, self.tile, self.tile), whole)
        return ProcessedImage(crops, given_height, given_width, rows, columns)

    def limits(self, patch_size: int) -> ImageLimits:
        """The tiles of a square image, and one more."""
        longest = max(self.size.values())
        # An odd side may grow by one pixel.
        side = math.ceil((longest + longest % 2) / self.tile)
        crops = side * side + 1 if self.splits and side > 1 else 1
        return ImageLimits(crops, crops * (self.tile // patch_size) ** 2)

    def _first_size(self, height: int, width: int) -> tuple[int, int]:
        if "longest_edge" not in self.size:
            return self.size["height"], self.size["width"]
        height, width = longest_becomes(height, width, self.size["longest_edge"])
        return _longest_is_at_most(height, width, LONGEST_SIDE)

    def _whole_tiles(self, height: int, width: int) -> tuple[int, int]:
        ratio = width / height
        if width >= height:
            width = math.ceil(width / self.tile) * self.tile
            height = math.ceil(int(width / ratio) / self.tile) * self.tile
        else:
            height = math.ceil(height / self.tile) * self.tile
            width = math.ceil(int(height * ratio) / self.tile) * self.tile
        return height, width


def longest_becomes(height: int, width: int, longest: int) -> tuple[int, int]:
    """Scale so that the longest side has this size, and the other an even one."""
    ratio = width / height
    if width >= height:
        height, width = int(longest / ratio), longest
        height += height % 2
    else:
        height, width = longest, int(longest * ratio)
        width += width % 2
    return max(height, 1), max(width, 1)


def _longest_is_at_most(height: int, width: int, longest: int) -> tuple[int, int]:
    ratio = width / height
    if width >= height and width > longest:
        height, width = int(longest / ratio), longest
    elif height > width and height > longest:
        height, width = longest, int(longest * ratio)
    return max(height, 1), max(width, 1)
