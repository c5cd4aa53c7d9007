"""Gemma 3: the whole image, and with pan-and-scan also pieces of long ones, all of one size."""

import math
from dataclasses import dataclass
from typing import ClassVar, Self

from PIL import Image

from jaxllm.serving.media.image_processors.arithmetic import resize
from jaxllm.serving.media.image_processors.base import Bytes, ImageLimits, Normalisation, ProcessedImage
from jaxllm.serving.media.image_processors.normalising import read_normalisation, require_rgb_and_resize
from jaxllm.serving.media.image_processors.settings import IMAGENET, SQUARE, Settings


@dataclass(frozen=True)
class PanAndScan:
    """How long images are cut into pieces, in addition to the whole."""

    min_crop_size: int
    """Pixels of a side of a piece, at least."""
    max_num_crops: int
    min_ratio: float
    """Of the sides, from which on an image is cut."""

    @classmethod
    def read(cls, settings: Settings) -> Self:
        """Read fields with the defaults of Gemma3Processor."""
        return cls(
            settings.integer("pan_and_scan_min_crop_size", 256),
            settings.integer("pan_and_scan_max_num_crops", 4, 1, 64),
            settings.number("pan_and_scan_min_ratio_to_activate", 1.2, 0.0, 1e6),
        )

    def pieces(self, image: Bytes) -> tuple[Bytes, ...]:
        """Pieces of the longer side, in order; none of an image that is nearly square, or small."""
        height, width = image.shape[:2]
        long, short = max(height, width), min(height, width)
        if long / short < self.min_ratio:
            return ()
        count = min(long // self.min_crop_size, math.floor(long / short + 0.5))
        count = min(self.max_num_crops, max(2, count))
        step = math.ceil(long / count)
        if min(step, short) < self.min_crop_size:
            return ()
        starts = range(0, step * count, step)
        if width >= height:
            return tuple(image[:, start : start + step] for start in starts)
        return tuple(image[start : start + step] for start in starts)


@dataclass(frozen=True)
class Gemma3:
    """`Gemma3ImageProcessor`."""

    size: dict[str, int]
    pan_and_scan: PanAndScan | None
    resample: Image.Resampling
    normalisation: Normalisation

    REQUEST_FIELDS: ClassVar[tuple[str, ...]] = (
        "do_pan_and_scan",
        "pan_and_scan_min_crop_size",
        "pan_and_scan_max_num_crops",
        "pan_and_scan_min_ratio_to_activate",
    )

    @classmethod
    def read(cls, settings: Settings) -> Self:
        """Read a configuration. Raises the error of `settings`."""
        require_rgb_and_resize(settings)
        settings.require("do_center_crop", False, False)
        settings.ignore("do_pad", "crop_size")
        pan_and_scan = PanAndScan.read(settings)
        return cls(
            settings.edges("size", {"height": 224, "width": 224}, (SQUARE,)),
            pan_and_scan if settings.flag("do_pan_and_scan", False) else None,
            settings.resample(Image.Resampling.BILINEAR),
            read_normalisation(settings, IMAGENET, IMAGENET),
        )

    def process(self, image: Bytes) -> ProcessedImage:
        """Process uint8 [height, width, 3]: the whole image, then its pieces."""
        pieces = self.pan_and_scan.pieces(image) if self.pan_and_scan else ()
        crops = [resize(each, self.size["height"], self.size["width"], self.resample) for each in (image, *pieces)]
        return ProcessedImage(tuple(crops), image.shape[0], image.shape[1], 1 if pieces else 0, len(pieces))

    def limits(self, patch_size: int) -> ImageLimits:
        """The whole image and all pieces."""
        # However few are allowed, min() comes after max(2, ...) in transformers: a limit of one gives one piece.
        crops = 1 + (self.pan_and_scan.max_num_crops if self.pan_and_scan else 0)
        return ImageLimits(crops, crops * (self.size["height"] // patch_size) * (self.size["width"] // patch_size))
