"""Kimi-K2.5 and Kimi-VL: an image of nearly its own size, filled up to whole tokens."""

import math
from dataclasses import dataclass
from typing import ClassVar, Final, Self

import numpy as np
from PIL import Image

from jaxllm.errors import RequestError
from jaxllm.serving.media.image_processors.arithmetic import resize
from jaxllm.serving.media.image_processors.base import CHANNELS, Bytes, ImageLimits, ProcessedImage
from jaxllm.serving.media.image_processors.normalising import read_normalisation, require_rgb_and_resize
from jaxllm.serving.media.image_processors.qwen2_vl import Qwen2VL
from jaxllm.serving.media.image_processors.settings import IMAGENET, SQUARE, Settings

MOST_SIZE = frozenset({"max_height", "max_width"})


@dataclass(frozen=True)
class KimiK25(Qwen2VL):
    """`Kimi_K25ImageProcessor`."""

    most_patches: int = 16384
    """Of an image that is made smaller, before it is filled up."""
    most_each_way: int = 512

    REQUEST_FIELDS: ClassVar[tuple[str, ...]] = ("max_patches",)

    @classmethod
    def read(cls, settings: Settings) -> Self:
        """Read a configuration. Raises the error of `settings`."""
        require_rgb_and_resize(settings)
        settings.require("do_center_crop", False, False)
        settings.ignore("do_pad", "crop_size", "default_to_square")
        size = settings.edges("size", {"max_height": 512, "max_width": 512}, (MOST_SIZE,))
        if size["max_height"] != size["max_width"]:
            raise settings.fail("size must have the same max_height and max_width")
        patch, most = settings.integer("patch_size", 14, 1, 256), settings.integer("max_patches", 16384)
        return cls(
            1,
            most * patch**2,
            patch,
            settings.integer("merge_size", 2, 1, 16),
            1,
            settings.resample(Image.Resampling.BICUBIC),
            read_normalisation(settings, IMAGENET, IMAGENET),
            most,
            size["max_height"],
        )

    def process(self, image: Bytes) -> ProcessedImage:
        """Process uint8 [height, width, 3] to one crop of whole tokens; what it has more is black."""
        height, width = image.shape[:2]
        inner = resize(image, *self._inner(height, width), self.resample)
        full_height, full_width = self.sides(height, width)
        crop = np.zeros((full_height, full_width, CHANNELS), np.uint8)
        crop[: inner.shape[0], : inner.shape[1]] = inner
        return ProcessedImage((crop,), height, width, full_height // self.patch_size, full_width // self.patch_size)

    def sides(self, height: int, width: int) -> tuple[int, int]:
        """Height and width that an image gets."""
        inner_height, inner_width = self._inner(height, width)
        return -(-inner_height // self.factor) * self.factor, -(-inner_width // self.factor) * self.factor

    def limits(self, patch_size: int) -> ImageLimits:
        """The most patches, which count before parts of them are filled up, as if all of an image did."""
        counts = np.arange(1, 2 * self.most_each_way + 1, dtype=np.float64)
        scales = np.minimum(1, np.sqrt(self.most_patches / np.outer(counts, counts)))
        rows = np.minimum((counts[:, None] + 1) * scales, self.most_each_way)
        whole = np.ceil(rows / self.merge_size)
        return ImageLimits(1, int((whole * whole.T).max()) * (self.factor // patch_size) ** 2)

    def _inner(self, height: int, width: int) -> tuple[int, int]:
        """Height and width before it is filled up: not more than given, and not more patches than allowed."""
        count = max(1, height // self.patch_size) * max(1, width // self.patch_size)
        most = self.most_each_way * self.patch_size
        scale = min(1.0, math.sqrt(self.most_patches / count), most / height, most / width)
        return min(max(1, int(height * scale)), most), min(max(1, int(width * scale)), most)


MOST_PLACES: Final = 512
"""Rows and columns of patches for which Kimi-VL's heads are rotated; an image has fewer."""


@dataclass(frozen=True)
class KimiVL(KimiK25):
    """`KimiVLImageProcessor`, of the checkpoints' own code: of a side too long for the model, it shortens none."""

    REQUEST_FIELDS: ClassVar[tuple[str, ...]] = ("in_token_limit",)

    @classmethod
    def read(cls, settings: Settings) -> Self:
        """Read a configuration. Raises the error of `settings`."""
        settings.require("pad_input", True, True)
        # What the language model would have of the largest image.
        settings.ignore("num_pooled_tokens")
        kernel = settings.edges("merge_kernel_size", {"height": 2, "width": 2}, (SQUARE,))
        if kernel["height"] != kernel["width"]:
            raise settings.fail("merge_kernel_size must be square")
        patch, most = settings.integer("patch_size", 14, 1, 256), settings.integer("in_token_limit", 4096)
        normalisation = read_normalisation(settings, IMAGENET, IMAGENET)
        return cls(1, most * patch**2, patch, kernel["height"], 1, Image.Resampling.BICUBIC, normalisation, most, 511)

    def _inner(self, height: int, width: int) -> tuple[int, int]:
        """Height and width before it is filled up. Raises `RequestError` for a side that stays too long."""
        count = (height // self.patch_size) * (width // self.patch_size)
        if count > self.most_patches:
            scale = math.sqrt(self.most_patches / count)
            height, width = int(height * scale), int(width * scale)
        longest = -(-max(height, width) // self.factor) * self.merge_size
        if min(height, width) < 1 or longest >= MOST_PLACES:
            raise RequestError(
                f"an image of {width} x {height} pixels is too long: the model sees fewer than {MOST_PLACES} patches "
                f"of {self.patch_size} pixels each way; send an image whose sides differ less",
                "image_url",
            )
        return height, width
