"""Gemma 4: one image with its shape, as large as a number of tokens allows."""

import math
from dataclasses import dataclass
from typing import ClassVar, Final, Self

from PIL import Image

from jaxllm.errors import RequestError
from jaxllm.serving.media.image_processors.arithmetic import resize
from jaxllm.serving.media.image_processors.base import Bytes, ImageLimits, Normalisation, ProcessedImage
from jaxllm.serving.media.image_processors.normalising import read_normalisation
from jaxllm.serving.media.image_processors.settings import Settings

TOKENS: Final = (70, 140, 280, 560, 1120)
"""What max_soft_tokens may be."""


@dataclass(frozen=True)
class Gemma4:
    """`Gemma4ImageProcessor`. Patches follow each other row by row; transformers pads their number with zeros."""

    tokens: int
    patch_size: int
    pooling: int
    """Patches of a side of what becomes one token."""
    resample: Image.Resampling
    normalisation: Normalisation

    REQUEST_FIELDS: ClassVar[tuple[str, ...]] = ("max_soft_tokens",)

    @classmethod
    def read(cls, settings: Settings) -> Self:
        """Read a configuration. Raises the error of `settings`."""
        settings.require("do_convert_rgb", True, True)
        settings.require("do_resize", True, True)
        settings.require("do_center_crop", False, False)
        # transformers has no use for a size here: the number of tokens says it.
        settings.ignore("do_pad", "crop_size", "size")
        tokens = settings.integer("max_soft_tokens", 280)
        if tokens not in TOKENS:
            raise settings.fail(f"max_soft_tokens={tokens}: choose one of {', '.join(map(str, TOKENS))}")
        return cls(
            tokens,
            settings.integer("patch_size", 16, 1, 256),
            settings.integer("pooling_kernel_size", 3, 1, 16),
            settings.resample(Image.Resampling.BICUBIC),
            read_normalisation(settings, (0.0, 0.0, 0.0), (1.0, 1.0, 1.0), normalize=False),
        )

    def process(self, image: Bytes) -> ProcessedImage:
        """Process uint8 [height, width, 3] to one crop of whole tokens. Raises `RequestError` for impossible shapes."""
        given = (image.shape[0], image.shape[1])
        sides = self._sides(*given)
        resized = image if sides == given else resize(image, *sides, self.resample)
        rows, columns = resized.shape[0] // self.patch_size, resized.shape[1] // self.patch_size
        return ProcessedImage((resized,), *given, rows, columns)

    def limits(self, patch_size: int) -> ImageLimits:
        """As many patches as make the tokens."""
        return ImageLimits(1, self.tokens * self.pooling**2 * self.patch_size**2 // patch_size**2)

    def _sides(self, height: int, width: int) -> tuple[int, int]:
        most = self.tokens * self.pooling**2 * self.patch_size**2
        side = self.pooling * self.patch_size
        factor = math.sqrt(most / (height * width))
        rows, columns = math.floor(factor * height / side), math.floor(factor * width / side)
        if rows == 0:
            rows, columns = 1, min(width // height, self.tokens)
        elif columns == 0:
            rows, columns = min(height // width, self.tokens), 1
        if rows * columns * side * side > most:
            raise RequestError(
                f"an image of {width}x{height} pixels does not fit into {self.tokens} tokens", "image_url"
            )
        return rows * side, columns * side
