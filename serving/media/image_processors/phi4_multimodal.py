"""Phi-4 multimodal: the whole image in one square, and then crops of it, as far as these are no padding."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from jaxllm.errors import RequestError
from jaxllm.models.towers.fine_bytes import STEPS, fine_steps
from jaxllm.serving.media.image_processors.arithmetic import check_pixels, resize
from jaxllm.serving.media.image_processors.base import CHANNELS, Bytes, ImageLimits, Normalisation, ProcessedImage
from jaxllm.serving.media.image_processors.normalising import read_normalisation, require_rgb_and_resize
from jaxllm.serving.media.image_processors.settings import IMAGENET, SQUARE, Settings

SOUND_FIELDS = (
    "audio_compression_rate", "audio_downsample_rate", "audio_feat_stride", "feature_size", "sampling_rate",
    "hop_length", "n_fft", "win_length", "preemphasis", "mel_min_frequency", "mel_max_frequency", "padding_value",
    "padding_side", "return_attention_mask",
)  # fmt: skip
"""Fields of sound, which older checkpoints have in the file of images."""
FEWEST_PIXELS = 10
"""Of a side of a resized image: others are too extreme for the model."""
_HALF = np.array([-3, 19, 19, -3], np.int32)
"""The cubic kernel of Keys (a = -0.75) halfway between two pixels, times 32."""


@dataclass(frozen=True)
class Phi4Multimodal:
    """`Phi4MultimodalImageProcessor`.

    Microsoft's own code resizes with Pillow, as here, before it cuts; transformers does it with torchvision.
    """

    side: int
    patch: int
    grids: tuple[tuple[int, int], ...]
    """(columns, rows) to choose from for images that need more than `most` crops, smaller ones first."""
    most: int
    normalisation: Normalisation

    REQUEST_FIELDS: ClassVar[tuple[str, ...]] = ("dynamic_hd",)

    @classmethod
    def read(cls, settings: Settings) -> Self:
        """Read a configuration. Raises the error of `settings`."""
        require_rgb_and_resize(settings)
        settings.require("do_center_crop", False, False)
        settings.ignore("do_pad", "crop_size")
        # Of sound, in the file of the published checkpoint.
        settings.ignore(*SOUND_FIELDS)
        size = settings.edges("size", {"height": 448, "width": 448}, (SQUARE,))
        if size["height"] != size["width"]:
            raise settings.fail("size must be square")
        if settings.resample(Image.Resampling.BICUBIC) != Image.Resampling.BICUBIC:
            raise settings.fail("resample must be 3 (bicubic)")
        patch = settings.integer("patch_size", 14, 1, 256)
        if size["height"] % (2 * patch):
            raise settings.fail(f"size must be a multiple of 2 * patch_size={2 * patch}")
        most = settings.integer("dynamic_hd", 36, 1, 256)
        grids = [(columns, rows) for columns in range(1, most + 1) for rows in range(1, most // columns + 1)]
        # The order of grids of as many crops decides nothing: another one is between any two of their ratios.
        grids.sort(key=lambda grid: grid[0] * grid[1])
        return cls(size["height"], patch, tuple(grids), most, read_normalisation(settings, IMAGENET, IMAGENET))

    def process(self, image: Bytes) -> ProcessedImage:
        """Process uint8 [height, width, 3]: the whole, in fine bytes [side, side, 9], then the crops row by row.

        Crops at the right and below lack what is only padding, in whole patches. Raises `RequestError` for an image
        that is too long.
        """
        given = image.shape[0], image.shape[1]
        columns, rows = self._grid(*given)
        height, width = self._inside(given, rows, columns)
        full_height, full_width = rows * self.side, columns * self.side
        check_pixels(full_height, full_width, image)
        canvas = np.full((full_height, full_width, CHANNELS), 255, np.uint8)
        canvas[:height, :width] = resize(image, height, width, Image.Resampling.BILINEAR)
        bottom, right = (
            full - (full - length) // self.patch * self.patch
            for full, length in ((full_height, height), (full_width, width))
        )
        crops = tuple(
            canvas[top : min(top + self.side, bottom), left : min(left + self.side, right)]
            for top in range(0, bottom, self.side)
            for left in range(0, right, self.side)
        )
        used_rows, used_columns = -(-bottom // self.side), -(-right // self.side)
        return ProcessedImage((shrunk(canvas, self.side), *crops), *given, used_rows, used_columns)

    def limits(self, patch_size: int) -> ImageLimits:
        """The crops of the largest grid, and the whole image."""
        crops = self.most + 1
        return ImageLimits(crops, crops * (self.side // patch_size) ** 2)

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        """Columns and rows: as many as the image fills, or those of the nearest ratio."""
        columns, rows = math.ceil(width / self.side), math.ceil(height / self.side)
        if columns * rows <= self.most:
            return columns, rows
        ratio, best, least = width / height, (1, 1), math.inf
        for grid in self.grids:
            difference = abs(ratio - grid[0] / grid[1])
            is_large = width * height > 0.5 * self.side**2 * grid[0] * grid[1]
            if difference < least or (difference == least and is_large):
                best, least = grid, difference
        return best

    def _inside(self, given: tuple[int, int], rows: int, columns: int) -> tuple[int, int]:
        """Height and width of the image on its canvas. Raises `RequestError` for a side of a few pixels."""
        across, down = columns * self.side / given[1], rows * self.side / given[0]
        if across < down:
            height, width = int(given[0] * across), columns * self.side
        else:
            height, width = rows * self.side, int(given[1] * down)
        if min(height, width) < FEWEST_PIXELS:
            raise RequestError(
                f"an image of {given[1]} x {given[0]} pixels is too long: it would be resized to {width} x {height}, "
                f"and the model takes no side below {FEWEST_PIXELS}; send an image whose sides differ less",
                "image_url",
            )
        return height, width


def shrunk(canvas: Bytes, side: int) -> Bytes:
    """A canvas of whole squares, uint8 [n * side, m * side, 3], in one, as fine bytes [side, side, 9].

    Resized as floats by the cubic kernel, which without antialiasing is one pixel of an odd number, and the middle of
    the middle two of an even one.
    """
    down = _thinned(canvas, side)
    both = _thinned(down.transpose(1, 0, 2), side).transpose(1, 0, 2)
    scale = STEPS // (_divisor(canvas.shape[0], side) * _divisor(canvas.shape[1], side))
    return fine_steps(np.ascontiguousarray(both * scale))


def _thinned(values: NDArray[Any], side: int) -> NDArray[np.int32]:
    """Fewer rows, `side` of n * side, times `_divisor`."""
    factor = len(values) // side
    if factor % 2:
        return values[factor // 2 :: factor].astype(np.int32)
    first = np.arange(side) * factor + factor // 2 - 2
    places = np.clip(first[:, None] + np.arange(4), 0, len(values) - 1)
    found: NDArray[np.int32] = sum(values[places[:, tap]].astype(np.int32) * weight for tap, weight in enumerate(_HALF))
    return found


def _divisor(length: int, side: int) -> int:
    return 1 if length // side % 2 else 32
