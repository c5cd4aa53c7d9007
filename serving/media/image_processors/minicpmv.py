"""MiniCPM-V 4.6: the whole image in nearly one square's pixels, and slices of it of as many."""

import math
from dataclasses import dataclass
from typing import ClassVar, Self

from PIL import Image

from jaxllm.errors import RequestError
from jaxllm.serving.media.image_processors.arithmetic import check_pixels, resize, tiles
from jaxllm.serving.media.image_processors.base import Bytes, ImageLimits, Normalisation, ProcessedImage
from jaxllm.serving.media.image_processors.normalising import read_normalisation, require_rgb_and_resize
from jaxllm.serving.media.image_processors.settings import IMAGENET, Settings

MERGE = 4
"""Patches each way that become a token."""


@dataclass(frozen=True)
class MiniCPMV:
    """`MiniCPMV4_6ImageProcessor`."""

    most: int
    """Slices of an image; 1 where images are not cut."""
    side: int
    patch: int
    has_ids: bool
    resample: Image.Resampling
    normalisation: Normalisation

    REQUEST_FIELDS: ClassVar[tuple[str, ...]] = ("max_slice_nums", "slice_mode")

    @classmethod
    def read(cls, settings: Settings) -> Self:
        """Read a configuration. Raises the error of `settings`."""
        require_rgb_and_resize(settings)
        settings.ignore("do_pad", "size", "crop_size", "do_center_crop", "default_to_square")
        if settings.text("downsample_mode", "16x") != "16x":
            raise settings.fail("downsample_mode must be 16x")
        most = settings.integer("max_slice_nums", 9, 1, 256)
        return cls(
            most if settings.flag("slice_mode", True) else 1,
            settings.integer("scale_resolution", 448),
            settings.integer("patch_size", 14, 1, 256),
            settings.flag("use_image_id", True),
            settings.resample(Image.Resampling.BICUBIC),
            read_normalisation(settings, IMAGENET, IMAGENET),
        )

    def process(self, image: Bytes) -> ProcessedImage:
        """Process uint8 [height, width, 3]: the whole, and then slices row by row.

        Raises `RequestError` for an image that is too long for the model.
        """
        height, width = image.shape[:2]
        grid = self._grid(height, width)
        whole = self._resized(image, self._size(height, width, grows=grid is None))
        if grid is None:
            return ProcessedImage((whole,), height, width)
        rows, columns = grid
        inner = (_nearest(height, rows) / rows, _nearest(width, columns) / columns)
        slice_height, slice_width = self._size(*inner, grows=True)
        cut = self._resized(image, (slice_height, slice_width), rows, columns)
        return ProcessedImage((whole, *tiles(cut, slice_height, slice_width)), height, width, rows, columns)

    def limits(self, patch_size: int) -> ImageLimits:
        """The whole image, and its slices."""
        crops = self.most + 1 if self.most > 1 else 1
        return ImageLimits(crops, crops * self._most_patches * (self.patch // patch_size) ** 2)

    @property
    def _most_patches(self) -> int:
        """Of a crop: twice those of a square one, more than which the tower has no program for."""
        return 2 * (self.side // self.patch) ** 2 // MERGE**2 * MERGE**2

    def _resized(self, image: Bytes, size: tuple[int, int], rows: int = 1, columns: int = 1) -> Bytes:
        """The image as `rows` times `columns` crops of a size."""
        height, width = size
        if height * width > self._most_patches * self.patch**2:
            raise RequestError(
                f"an image of {image.shape[1]} x {image.shape[0]} pixels is too long: a crop would have {height} x "
                f"{width} pixels, and the model takes {self._most_patches} patches; send one whose sides differ less",
                "image_url",
            )
        check_pixels(height * rows, width * columns, image)
        return resize(image, height * rows, width * columns, self.resample)

    def _size(self, height: float, width: float, *, grows: bool) -> tuple[int, int]:
        """Height and width in whole tokens: as many pixels as a square has, or those of a small image."""
        if height * width > self.side**2 or grows:
            ratio = width / height
            height = int(self.side / math.sqrt(ratio))
            width = int(height * ratio)
        return _nearest(height, self.patch * MERGE), _nearest(width, self.patch * MERGE)

    def _grid(self, height: int, width: int) -> tuple[int, int] | None:
        """Rows and columns of slices whose shape is nearest to a square; None for a small image."""
        needed = min(math.ceil(width * height / self.side**2), self.most)
        if needed <= 1:
            return None
        ratio, best, least = math.log(width / height), (1, 1), math.inf
        for count in (needed - 1, needed, needed + 1):
            if count == 1 or count > self.most:
                continue
            for rows in range(1, count + 1):
                if count % rows:
                    continue
                error = abs(ratio - math.log(count // rows / rows))
                if error < least or (error == least and rows > best[0]):
                    best, least = (rows, count // rows), error
        return best


def _nearest(length: float, divisor: int) -> int:
    return max(round(length / divisor) * divisor, divisor)
