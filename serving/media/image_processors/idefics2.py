"""Idefics2: an image within bounds of its sides, or its four quarters and the whole."""

from dataclasses import dataclass
from typing import ClassVar, Self

from PIL import Image

from jaxllm.serving.media.image_processors.arithmetic import resize
from jaxllm.serving.media.image_processors.base import Bytes, ImageLimits, Normalisation, ProcessedImage
from jaxllm.serving.media.image_processors.normalising import read_normalisation, require_rgb_and_resize
from jaxllm.serving.media.image_processors.settings import IMAGENET, PIXELS, Settings


@dataclass(frozen=True)
class Idefics2:
    """`Idefics2ImageProcessor`. Crops keep their sizes: transformers pads them after normalising, with zeros."""

    shortest: int
    longest: int
    splits: bool
    resample: Image.Resampling
    normalisation: Normalisation

    REQUEST_FIELDS: ClassVar[tuple[str, ...]] = ("size", "do_image_splitting")

    @classmethod
    def read(cls, settings: Settings) -> Self:
        """Read a configuration. Raises the error of `settings`."""
        require_rgb_and_resize(settings)
        settings.ignore("do_pad")
        size = settings.edges("size", {"shortest_edge": 378, "longest_edge": 980}, (PIXELS,), square=False)
        if size["shortest_edge"] > size["longest_edge"]:
            raise settings.fail("size.shortest_edge is larger than size.longest_edge")
        return cls(
            size["shortest_edge"],
            size["longest_edge"],
            settings.flag("do_image_splitting", False),
            settings.resample(Image.Resampling.BILINEAR),
            read_normalisation(settings, IMAGENET, IMAGENET),
        )

    def process(self, image: Bytes) -> ProcessedImage:
        """Process uint8 [height, width, 3]: quarters row by row and then the whole, or only that."""
        height, width = image.shape[:2]
        pieces = (*_quarters(image), image) if self.splits else (image,)
        crops = tuple(resize(each, *self._sides(each), self.resample) for each in pieces)
        side = 2 if self.splits else 0
        return ProcessedImage(crops, height, width, side, side)

    def limits(self, patch_size: int) -> ImageLimits:
        """Squares of the longest edge."""
        crops = 5 if self.splits else 1
        return ImageLimits(crops, crops * (self.longest // patch_size) ** 2)

    def _sides(self, image: Bytes) -> tuple[int, int]:
        height, width = image.shape[:2]
        ratio = width / height if height else 1.0
        if width >= height and width > self.longest:
            height, width = int(self.longest / ratio), self.longest
        elif height > width and height > self.longest:
            height, width = self.longest, int(self.longest * ratio)
        return max(height, self.shortest), max(width, self.shortest)


def _quarters(image: Bytes) -> tuple[Bytes, ...]:
    row, column = image.shape[0] // 2, image.shape[1] // 2
    return image[:row, :column], image[:row, column:], image[row:, :column], image[row:, column:]
