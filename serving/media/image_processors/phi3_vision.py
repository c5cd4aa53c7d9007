"""Phi-3-Vision and 3.5: the whole image in one square, and squares of it at a higher resolution, between white bars."""

import math
from dataclasses import dataclass
from typing import ClassVar, Final, Self

import numpy as np
from PIL import Image

from jaxllm.errors import RequestError
from jaxllm.serving.media.image_processors.arithmetic import resize, tiles
from jaxllm.serving.media.image_processors.base import CHANNELS, Bytes, ImageLimits, Normalisation, ProcessedImage
from jaxllm.serving.media.image_processors.normalising import read_normalisation
from jaxllm.serving.media.image_processors.phi4_multimodal import shrunk
from jaxllm.serving.media.image_processors.settings import CLIP_MEAN, CLIP_STD, SQUARE, Settings

PATCH: Final = 14


@dataclass(frozen=True)
class Phi3Vision:
    """`Phi3VImageProcessor`, of the checkpoints' own code, which resizes with Pillow, too."""

    side: int
    """336 pixels; the published code has no field for it."""
    most: int
    normalisation: Normalisation

    REQUEST_FIELDS: ClassVar[tuple[str, ...]] = ("num_crops",)

    @classmethod
    def read(cls, settings: Settings) -> Self:
        """Read a configuration. Raises the error of `settings`."""
        settings.require("do_convert_rgb", True, True)
        # How many rows a crop becomes, which the model says itself.
        settings.ignore("num_img_tokens")
        size = settings.edges("size", {"height": 336, "width": 336}, (SQUARE,))
        if size["height"] != size["width"] or size["height"] % (2 * PATCH):
            raise settings.fail(f"size must be a square of whole tokens, {2 * PATCH} pixels each way")
        most = settings.integer("num_crops", 16, 1, 256)
        return cls(size["height"], most, read_normalisation(settings, CLIP_MEAN, CLIP_STD))

    def process(self, image: Bytes) -> ProcessedImage:
        """Process uint8 [height, width, 3]: the whole, in fine bytes [side, side, 9], then the crops row by row.

        Raises `RequestError` for an image that is too long.
        """
        given_height, given_width = image.shape[:2]
        is_high = given_width < given_height
        # High images are laid on their side: so the published code rounds as with wide ones.
        wide = np.ascontiguousarray(image.transpose(1, 0, 2)) if is_high else image
        ratio = wide.shape[1] / wide.shape[0]
        columns = self._columns(ratio)
        width = columns * self.side
        height = int(width / ratio)
        if height < 1:
            raise RequestError(
                f"an image of {given_width} x {given_height} pixels is too long: nothing would be left of its shorter "
                "side; send an image whose sides differ less",
                "image_url",
            )
        inner = resize(wide, height, width, Image.Resampling.BILINEAR)
        canvas = np.full((-(-height // self.side) * self.side, width, CHANNELS), 255, np.uint8)
        top = (len(canvas) - height) // 2
        canvas[top : top + height] = inner
        if is_high:
            canvas = np.ascontiguousarray(canvas.transpose(1, 0, 2))
        crops = (shrunk(canvas, self.side), *tiles(canvas, self.side, self.side))
        rows, columns = canvas.shape[0] // self.side, canvas.shape[1] // self.side
        return ProcessedImage(crops, given_height, given_width, rows, columns)

    def limits(self, patch_size: int) -> ImageLimits:
        """As many crops as allowed, and the whole image."""
        crops = self.most + 1
        return ImageLimits(crops, crops * (self.side // patch_size) ** 2)

    def _columns(self, ratio: float) -> int:
        """The most columns of crops whose rows, for a wide image of this ratio, are not too many crops."""
        columns = 1
        while (columns + 1) * math.ceil((columns + 1) / ratio) <= self.most:
            columns += 1
        return columns
