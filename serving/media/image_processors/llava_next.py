"""LLaVA-NeXT and LLaVA-OneVision: the whole image, and tiles of the resolution of a list that suits it best."""

import math
from dataclasses import dataclass
from typing import ClassVar, Final, Self

import numpy as np
from PIL import Image

from jaxllm.serving.media.image_processors.arithmetic import center_crop, edges_of, resize, tiles
from jaxllm.serving.media.image_processors.base import CHANNELS, Bytes, ImageLimits, Normalisation, ProcessedImage
from jaxllm.serving.media.image_processors.normalising import read_normalisation, require_rgb_and_resize
from jaxllm.serving.media.image_processors.settings import CLIP_MEAN, CLIP_STD, SHORTEST, SQUARE, Settings

Resolutions = tuple[tuple[int, int], ...]
_NEXT: Final[Resolutions] = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))
_ONE_VISION: Final[Resolutions] = tuple((384 * rows, 384 * columns) for rows in range(1, 7) for columns in range(1, 7))


@dataclass(frozen=True)
class LLaVANext:
    """`LlavaNextImageProcessor`."""

    size: dict[str, int]
    crop: dict[str, int] | None
    resolutions: Resolutions
    tile: int
    resample: Image.Resampling
    normalisation: Normalisation

    REQUEST_FIELDS: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def read(cls, settings: Settings) -> Self:
        """Read a configuration. Raises the error of `settings`."""
        size = settings.edges("size", {"shortest_edge": 224}, (SHORTEST, SQUARE), square=False)
        crop = settings.edges("crop_size", {"height": 224, "width": 224}, (SQUARE,))
        cuts = settings.flag("do_center_crop", True)
        return cls._read(settings, size, crop["height"], crop if cuts else None, _NEXT)

    @classmethod
    def _read(
        cls,
        settings: Settings,
        size: dict[str, int],
        tile: int,
        crop: dict[str, int] | None,
        resolutions: Resolutions,
    ) -> Self:
        require_rgb_and_resize(settings)
        # Padding is of the number of tiles, where arrays hold several images.
        settings.ignore("do_pad")
        found = settings.pairs("image_grid_pinpoints", resolutions)
        if any(height % tile or width % tile for height, width in found):
            raise settings.fail(f"image_grid_pinpoints must be multiples of the size of a tile, {tile} pixels")
        resample = settings.resample(Image.Resampling.BICUBIC)
        return cls(size, crop, found, tile, resample, read_normalisation(settings, CLIP_MEAN, CLIP_STD))

    def process(self, image: Bytes) -> ProcessedImage:
        """Process uint8 [height, width, 3]: the whole image, then tiles row by row."""
        given = (image.shape[0], image.shape[1])
        height, width = best_resolution(given, self.resolutions)
        inner = _within(given, (height, width))
        padded = _in_the_middle(resize(image, *inner, self.resample), height, width)
        whole_size = self.size.get("height") or self.size["shortest_edge"]
        whole = resize(image, whole_size, self.size.get("width") or whole_size, self.resample)
        crops = tuple(self._finish(each) for each in (whole, *tiles(padded, self.tile, self.tile)))
        return ProcessedImage(crops, *given, height // self.tile, width // self.tile)

    def limits(self, patch_size: int) -> ImageLimits:
        """The whole image and the tiles of the largest resolution."""
        crops = 1 + max(height // self.tile * (width // self.tile) for height, width in self.resolutions)
        side = self.crop or self.size
        height = side.get("height") or side["shortest_edge"]
        width = side.get("width") or height
        return ImageLimits(crops, crops * (height // patch_size) * (width // patch_size))

    def _finish(self, crop: Bytes) -> Bytes:
        """Tiles and the whole are squares of their size already, unless the configuration is unusual."""
        crop = resize(crop, *edges_of(crop, self.size), self.resample)
        return crop if self.crop is None else center_crop(crop, self.crop["height"], self.crop["width"])


@dataclass(frozen=True)
class LLaVAOneVision(LLaVANext):
    """`LlavaOnevisionImageProcessor`, for images that are not several frames of one."""

    @classmethod
    def read(cls, settings: Settings) -> Self:
        """Read a configuration. Raises the error of `settings`."""
        settings.require("do_center_crop", False, False)
        settings.ignore("crop_size")
        size = settings.edges("size", {"height": 384, "width": 384}, (SQUARE,), square=False)
        return cls._read(settings, size, size["height"], None, _ONE_VISION)


def best_resolution(given: tuple[int, int], resolutions: Resolutions) -> tuple[int, int]:
    """The (height, width) that keeps most of an image's pixels, and of those the one that wastes least."""
    given_height, given_width = given
    best, most_kept, least_wasted = resolutions[0], 0, math.inf
    for height, width in resolutions:
        scale = min(width / given_width, height / given_height)
        scaled = int(given_width * scale) * int(given_height * scale)
        kept = min(scaled, given_width * given_height)
        wasted = width * height - kept
        if kept > most_kept or (kept == most_kept and wasted < least_wasted):
            best, most_kept, least_wasted = (height, width), kept, wasted
    return best


def _within(given: tuple[int, int], target: tuple[int, int]) -> tuple[int, int]:
    """The size of an image that touches the border of a target."""
    scale_height, scale_width = target[0] / given[0], target[1] / given[1]
    if scale_width < scale_height:
        return min(math.ceil(given[0] * scale_width), target[0]), target[1]
    return target[0], min(math.ceil(given[1] * scale_height), target[1])


def _in_the_middle(image: Bytes, height: int, width: int) -> Bytes:
    """Pad with black."""
    padded = np.zeros((height, width, CHANNELS), np.uint8)
    top, left = (height - image.shape[0]) // 2, (width - image.shape[1]) // 2
    padded[top : top + image.shape[0], left : left + image.shape[1]] = image
    return padded
