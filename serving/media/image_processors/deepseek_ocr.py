"""DeepSeek-OCR: tiles of the grid that fits an image's shape best, and then the whole in the middle of a square."""

from dataclasses import dataclass
from typing import ClassVar, Self

from PIL import Image

from jaxllm.serving.media.image_processors.arithmetic import pad_to_square, resize, tiles
from jaxllm.serving.media.image_processors.base import Bytes, ImageLimits, Normalisation, ProcessedImage
from jaxllm.serving.media.image_processors.got_ocr2 import grids, nearest_grid
from jaxllm.serving.media.image_processors.normalising import read_normalisation, require_rgb_and_resize
from jaxllm.serving.media.image_processors.settings import IMAGENET, SQUARE, Settings

_GREY = (127.0, 127.0, 127.0)


@dataclass(frozen=True)
class DeepSeekOCR2:
    """`DeepseekOcr2ImageProcessor`."""

    side: int
    """Pixels each way of the whole image."""
    tile: int
    """The same of a tile. Images no larger than one have none."""
    grids: tuple[tuple[int, int], ...]
    """(columns, rows) to choose from; none where images are not cut."""
    color: tuple[int, ...]
    """Of what is beside the image in the square."""
    stretches: bool
    """Whether the image fills the square, whatever its shape."""
    resample: Image.Resampling
    normalisation: Normalisation

    REQUEST_FIELDS: ClassVar[tuple[str, ...]] = ("crop_to_patches", "min_patches", "max_patches")
    TILE: ClassVar[int] = 768
    MOST: ClassVar[int] = 6

    @classmethod
    def read(cls, settings: Settings) -> Self:
        """Read a configuration. Raises the error of `settings`."""
        require_rgb_and_resize(settings)
        settings.require("do_center_crop", False, False)
        settings.ignore("do_pad", "crop_size")
        size = settings.edges("size", {"height": 1024, "width": 1024}, (SQUARE,))
        if size["height"] != size["width"]:
            raise settings.fail("size must be square")
        low, high = settings.integer("min_patches", 2, 1, 256), settings.integer("max_patches", cls.MOST, 1, 256)
        if low > high:
            raise settings.fail(f"min_patches={low} is larger than max_patches={high}")
        tile, cuts = settings.integer("tile_size", cls.TILE), settings.flag("crop_to_patches", True)
        side = cls._side(size["height"], tile, cuts=cuts)
        return cls(
            side,
            tile,
            grids(low, high) if cuts else (),
            tuple(int(each) for each in settings.channels("background_color", _GREY)),
            not cuts and side <= cls._most_stretched(settings),
            settings.resample(Image.Resampling.BICUBIC),
            read_normalisation(settings, IMAGENET, IMAGENET),
        )

    @staticmethod
    def _side(size: int, tile: int, *, cuts: bool) -> int:
        return size if cuts else tile

    @staticmethod
    def _most_stretched(settings: Settings) -> int:
        """The largest square that images fill."""
        return 0

    def process(self, image: Bytes) -> ProcessedImage:
        """Process uint8 [height, width, 3]: tiles row by row, then the whole image; or only that."""
        height, width = image.shape[:2]
        whole = self._whole(image)
        if not self.grids or max(height, width) <= self.tile:
            return ProcessedImage((whole,), height, width)
        columns, rows = nearest_grid(self.grids, height, width, self.tile**2)
        resized = resize(image, self.tile * rows, self.tile * columns, self.resample)
        return ProcessedImage((*tiles(resized, self.tile, self.tile), whole), height, width, rows, columns)

    def _whole(self, image: Bytes) -> Bytes:
        if self.stretches:
            return resize(image, self.side, self.side, self.resample)
        height, width = image.shape[:2]
        scale = self.side / max(height, width)
        resized = resize(image, round(height * scale), round(width * scale), self.resample)
        return pad_to_square(resized, self.color)

    def limits(self, patch_size: int) -> ImageLimits:
        """The tiles of the largest grid, and the whole image."""
        most = max((columns * rows for columns, rows in self.grids), default=0)
        return ImageLimits(most + 1, most * (self.tile // patch_size) ** 2 + (self.side // patch_size) ** 2)


class UnlimitedOCR(DeepSeekOCR2):
    """`UnlimitedOcrImageProcessor`, which DeepSeek-OCR's is like."""

    TILE: ClassVar[int] = 640
    MOST: ClassVar[int] = 32

    @staticmethod
    def _side(size: int, tile: int, *, cuts: bool) -> int:
        return size

    @staticmethod
    def _most_stretched(settings: Settings) -> int:
        return settings.integer("maximum_pad_value", 640)
