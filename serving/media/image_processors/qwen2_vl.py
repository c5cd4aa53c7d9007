"""Qwen2-VL and later, GLM-4V and PaddleOCR-VL: one image whose number of pixels lies within bounds."""

import math
from dataclasses import dataclass
from typing import ClassVar, Final, Self

from PIL import Image

from jaxllm.errors import RequestError
from jaxllm.serving.media.image_processors.arithmetic import resize
from jaxllm.serving.media.image_processors.base import Bytes, ImageLimits, Normalisation, ProcessedImage
from jaxllm.serving.media.image_processors.normalising import read_normalisation, require_rgb_and_resize
from jaxllm.serving.media.image_processors.settings import CLIP_MEAN, CLIP_STD, PIXEL_COUNTS, PIXELS, Settings

MOST_ASPECT: Final = 200
"""Of the longer side to the shorter."""


@dataclass(frozen=True)
class Qwen2VL:
    """`Qwen2VLImageProcessor`, which Qwen2.5-VL, Qwen3-VL and Qwen3.5 use too."""

    min_pixels: int
    max_pixels: int
    patch_size: int
    merge_size: int
    frames: int
    """Frames that a patch spans; the device repeats an image so many times."""
    resample: Image.Resampling
    normalisation: Normalisation

    REQUEST_FIELDS: ClassVar[tuple[str, ...]] = ("size", "min_pixels", "max_pixels")
    DEFAULT_PIXELS: ClassVar[tuple[int, int]] = (56 * 56, 28 * 28 * 1280)
    DEFAULT_FRAMES: ClassVar[int] = 2

    @classmethod
    def read(cls, settings: Settings) -> Self:
        """Read a configuration. Raises the error of `settings`."""
        require_rgb_and_resize(settings)
        settings.require("do_center_crop", False, False)
        settings.ignore("do_pad", "crop_size")
        low, high = cls.DEFAULT_PIXELS
        size = settings.edges(
            "size", {"shortest_edge": low, "longest_edge": high}, (PIXELS, PIXEL_COUNTS), square=False
        )
        low = size.get("shortest_edge", size.get("min_pixels", low))
        high = size.get("longest_edge", size.get("max_pixels", high))
        if "min_pixels" in cls.REQUEST_FIELDS:
            low, high = (
                settings.integer(name, each, 1, 1 << 32) for name, each in (("min_pixels", low), ("max_pixels", high))
            )
        if low > high:
            raise settings.fail(f"at least {low} pixels, and at most {high}: no image can have both")
        return cls(
            low,
            high,
            settings.integer("patch_size", 14, 1, 256),
            settings.integer("merge_size", 2, 1, 16),
            settings.integer("temporal_patch_size", cls.DEFAULT_FRAMES, 1, 16),
            settings.resample(Image.Resampling.BICUBIC),
            read_normalisation(settings, CLIP_MEAN, CLIP_STD),
        )

    @property
    def factor(self) -> int:
        """Pixels of a side of what becomes one token."""
        return self.patch_size * self.merge_size

    def process(self, image: Bytes) -> ProcessedImage:
        """Process uint8 [height, width, 3] to one crop of whole tokens."""
        height, width = image.shape[:2]
        resized = resize(image, *self.sides(height, width), self.resample)
        rows, columns = resized.shape[0] // self.patch_size, resized.shape[1] // self.patch_size
        return ProcessedImage((resized,), height, width, rows, columns)

    def sides(self, height: int, width: int) -> tuple[int, int]:
        """Height and width that an image gets. Raises `RequestError` for too long a strip."""
        check_aspect(height, width)
        return fit(height, width, self.factor, self.min_pixels, self.max_pixels)

    def limits(self, patch_size: int) -> ImageLimits:
        """The largest number of pixels, and more for strips that would otherwise be less than one token wide."""
        pixels = most_pixels(self.factor, self.min_pixels, self.max_pixels)
        return ImageLimits(1, pixels // patch_size**2)


@dataclass(frozen=True)
class PaddleOCRVL(Qwen2VL):
    """`PaddleOCRVLImageProcessor`: small images are first enlarged to one token."""

    DEFAULT_PIXELS: ClassVar[tuple[int, int]] = (384 * 384, 1536 * 1536)
    DEFAULT_FRAMES: ClassVar[int] = 1

    def sides(self, height: int, width: int) -> tuple[int, int]:
        """Height and width that an image gets. Raises `RequestError` for too long a strip."""
        factor = self.factor
        if height < factor:
            height, width = factor, round(width * factor / height)
        if width < factor:
            height, width = round(height * factor / width), factor
        return super().sides(height, width)


@dataclass(frozen=True)
class GLM4V(Qwen2VL):
    """`Glm4vImageProcessor` and `Glm46VImageProcessor`: pixels of all frames of a patch count."""

    REQUEST_FIELDS: ClassVar[tuple[str, ...]] = ("size",)
    DEFAULT_PIXELS: ClassVar[tuple[int, int]] = (112 * 112, 28 * 28 * 15000)

    def sides(self, height: int, width: int) -> tuple[int, int]:
        """Height and width that an image gets. Raises `RequestError` for too long a strip."""
        if min(height, width) < self.factor:
            scale = max(self.factor / height, self.factor / width)
            height, width = int(height * scale), int(width * scale)
        check_aspect(height, width)
        return fit(height, width, self.factor, self.min_pixels, self.max_pixels, self.frames)

    def limits(self, patch_size: int) -> ImageLimits:
        """As for Qwen2-VL, of one frame."""
        pixels = most_pixels(self.factor, self.min_pixels / self.frames, self.max_pixels / self.frames)
        return ImageLimits(1, pixels // patch_size**2)


def check_aspect(height: int, width: int) -> None:
    """Raise `RequestError` for a strip."""
    if max(height, width) > MOST_ASPECT * min(height, width):
        raise RequestError(
            f"an image of {width}x{height} pixels is too long: its sides may differ by a factor of {MOST_ASPECT}",
            "image_url",
        )


def fit(height: int, width: int, factor: int, low: int, high: int, frames: int = 1) -> tuple[int, int]:
    """Round both sides to multiples of `factor`, so that the pixels of `frames` images are from `low` to `high`."""
    new_height, new_width = round(height / factor) * factor, round(width / factor) * factor
    if frames * new_height * new_width > high:
        beta = math.sqrt(frames * height * width / high)
        new_height = max(factor, math.floor(height / beta / factor) * factor)
        new_width = max(factor, math.floor(width / beta / factor) * factor)
    elif frames * new_height * new_width < low:
        beta = math.sqrt(low / (frames * height * width))
        new_height = math.ceil(height * beta / factor) * factor
        new_width = math.ceil(width * beta / factor) * factor
    return new_height, new_width


def most_pixels(factor: int, low: float, high: float) -> int:
    """The most pixels that `fit` gives any image."""
    token = factor * factor
    most = math.floor(high / token) * token
    # A strip whose shorter side would vanish keeps one token of it.
    longest = math.floor(math.sqrt(MOST_ASPECT * high) / factor)
    if math.sqrt(high / MOST_ASPECT) < factor:
        most = max(most, longest * token)
    # Sides of small images are rounded up, which adds most to strips.
    long, short = math.sqrt(MOST_ASPECT * low) / factor, math.sqrt(low / MOST_ASPECT) / factor
    square = math.sqrt(low) / factor
    return max(most, math.ceil(long + 1) * math.ceil(short + 1) * token, math.ceil(square + 1) ** 2 * token)
