"""Pixtral and Mistral 3: one image of whole patches, with its own shape."""

import math
from dataclasses import dataclass
from typing import ClassVar, Self

from PIL import Image

from jaxllm.serving.media.image_processors.arithmetic import resize
from jaxllm.serving.media.image_processors.base import Bytes, ImageLimits, Normalisation, ProcessedImage
from jaxllm.serving.media.image_processors.normalising import read_normalisation, require_rgb_and_resize
from jaxllm.serving.media.image_processors.settings import CLIP_MEAN, CLIP_STD, LONGEST, SQUARE, Settings


@dataclass(frozen=True)
class Pixtral:
    """`PixtralImageProcessor`."""

    size: dict[str, int]
    patch: dict[str, int]
    """Pixels that become one token: patches of the tower, merged."""
    resample: Image.Resampling
    normalisation: Normalisation

    REQUEST_FIELDS: ClassVar[tuple[str, ...]] = ("size",)

    @classmethod
    def read(cls, settings: Settings) -> Self:
        """Read a configuration. Raises the error of `settings`."""
        require_rgb_and_resize(settings)
        settings.require("do_center_crop", False, False)
        # Padding makes several images one array.
        settings.ignore("do_pad", "crop_size")
        return cls(
            settings.edges("size", {"longest_edge": 1024}, (LONGEST, SQUARE)),
            settings.edges("patch_size", {"height": 16, "width": 16}, (SQUARE,)),
            settings.resample(Image.Resampling.BICUBIC),
            read_normalisation(settings, CLIP_MEAN, CLIP_STD),
        )

    def process(self, image: Bytes) -> ProcessedImage:
        """Process uint8 [height, width, 3]: no side beyond the largest, and both rounded up to whole patches."""
        given_height, given_width = image.shape[:2]
        most_height, most_width = self._most()
        height, width = given_height, given_width
        ratio = max(height / most_height, width / most_width)
        if ratio > 1:
            height, width = math.floor(height / ratio), math.floor(width / ratio)
        rows, columns = self._tokens(height, width)
        resized = resize(image, rows * self.patch["height"], columns * self.patch["width"], self.resample)
        return ProcessedImage((resized,), given_height, given_width)

    def limits(self, patch_size: int) -> ImageLimits:
        """A square of the largest side."""
        rows, columns = self._tokens(*self._most())
        height, width = rows * self.patch["height"], columns * self.patch["width"]
        return ImageLimits(1, (height // patch_size) * (width // patch_size))

    def _most(self) -> tuple[int, int]:
        longest = self.size.get("longest_edge")
        return (longest, longest) if longest else (self.size["height"], self.size["width"])

    def _tokens(self, height: int, width: int) -> tuple[int, int]:
        return (height - 1) // self.patch["height"] + 1, (width - 1) // self.patch["width"] + 1
