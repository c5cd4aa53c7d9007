"""LFM2-VL: an image of nearly its own size; of a large one tiles, and then the whole in that size."""

import math
from dataclasses import dataclass
from typing import ClassVar, Self

from PIL import Image

from jaxllm.errors import RequestError
from jaxllm.serving.media.image_processors.arithmetic import resize, tiles
from jaxllm.serving.media.image_processors.base import Bytes, ImageLimits, Normalisation, ProcessedImage
from jaxllm.serving.media.image_processors.got_ocr2 import nearest_grid
from jaxllm.serving.media.image_processors.normalising import read_normalisation, require_rgb_and_resize
from jaxllm.serving.media.image_processors.settings import IMAGENET, Settings


@dataclass(frozen=True)
class LFM2VL:
    """`Lfm2VlImageProcessor`."""

    side: int
    """Pixels each way of what becomes a token."""
    tile: int
    grids: tuple[tuple[int, int], ...]
    """(columns, rows) to choose from; none where images are not cut."""
    adds_whole: bool
    fewest: int
    most: int
    """Tokens of an image that is not cut, and of the whole of one that is."""
    tolerance: float
    """How many times `most` tokens an image may have before it is cut."""
    resample: Image.Resampling
    normalisation: Normalisation

    REQUEST_FIELDS: ClassVar[tuple[str, ...]] = ("max_image_tokens", "min_image_tokens", "do_image_splitting")

    @classmethod
    def read(cls, settings: Settings) -> Self:
        """Read a configuration. Raises the error of `settings`."""
        require_rgb_and_resize(settings)
        settings.require("do_center_crop", False, False)
        # transformers resizes by tokens, and fills up to the most patches, which follow from these.
        settings.ignore("do_pad", "size", "crop_size", "default_to_square", "max_num_patches")
        merge = settings.integer("downsample_factor", 2, 1, 16)
        side, tile = settings.integer("encoder_patch_size", 16, 1, 256) * merge, settings.integer("tile_size", 512)
        fewest, most = settings.integer("min_image_tokens", 64), settings.integer("max_image_tokens", 256)
        low, high = settings.integer("min_tiles", 2, 2, 256), settings.integer("max_tiles", 10, 2, 256)
        cuts = settings.flag("do_image_splitting", True)
        if low > high or fewest > most:
            raise settings.fail("min_tiles or min_image_tokens is larger than the most")
        if cuts and (tile % side or (tile // side) ** 2 > most):
            raise settings.fail(f"tile_size={tile}: must be a multiple of {side}, and have at most {most} tokens")
        # In the order of transformers, which decides between equals.
        every = {
            (columns, rows)
            for count in range(low, high + 1)
            for columns in range(1, count + 1)
            for rows in range(1, count + 1)
            if low <= columns * rows <= high
        }
        return cls(
            side,
            tile,
            tuple(sorted(every, key=lambda grid: grid[0] * grid[1])) if cuts else (),
            settings.flag("use_thumbnail", True),
            fewest,
            most,
            settings.number("max_pixels_tolerance", 2.0, 0.0, 1e3),
            settings.resample(Image.Resampling.BILINEAR),
            read_normalisation(settings, IMAGENET, IMAGENET),
        )

    def process(self, image: Bytes) -> ProcessedImage:
        """Process uint8 [height, width, 3]: tiles row by row and the whole image, or only that.

        Raises `RequestError` for an image so narrow that it would have more tokens than allowed.
        """
        height, width = image.shape[:2]
        if not self.grids or not self._is_large(height, width):
            return ProcessedImage((self._whole(image),), height, width)
        columns, rows = nearest_grid(self.grids, height, width, self.tile**2)
        crops = tiles(resize(image, self.tile * rows, self.tile * columns, self.resample), self.tile, self.tile)
        if self.adds_whole:
            crops = (*crops, self._whole(image))
        return ProcessedImage(crops, height, width, rows, columns)

    def limits(self, patch_size: int) -> ImageLimits:
        """The tiles of the largest grid, and the whole image."""
        most = max((columns * rows for columns, rows in self.grids), default=0)
        area = (self.side // patch_size) ** 2
        whole = self.most if self.adds_whole or not most else 0
        patches = most * (self.tile // patch_size) ** 2 + whole * area
        return ImageLimits(most + bool(whole), patches)

    def _is_large(self, height: int, width: int) -> bool:
        sides = [max(self.side // 2, round(given / self.side) * self.side) for given in (height, width)]
        return sides[0] * sides[1] > self.most * self.side**2 * self.tolerance

    def _whole(self, image: Bytes) -> Bytes:
        height, width = image.shape[:2]
        rows, columns = (max(1, round(given / self.side)) for given in (height, width))
        if rows * columns > self.most:
            scale = math.sqrt(height * width / (self.most * self.side**2))
            rows, columns = (max(1, math.floor(given / scale / self.side)) for given in (height, width))
        elif rows * columns < self.fewest:
            scale = math.sqrt(self.fewest * self.side**2 / (height * width))
            rows, columns = (math.ceil(given * scale / self.side) for given in (height, width))
        if rows * columns > self.most:
            raise RequestError(
                f"an image of {width} x {height} pixels is too narrow: it would have {rows} x {columns} tokens, and at "
                f"most {self.most} are allowed",
                "image_url",
            )
        return resize(image, rows * self.side, columns * self.side, self.resample)
