"""CLIP, SigLIP and LLaVA 1.5: an image of one size."""

from dataclasses import dataclass
from typing import ClassVar, Self

from PIL import Image

from jaxllm.serving.media.image_processors.arithmetic import center_crop, edges_of, pad_to_square, resize
from jaxllm.serving.media.image_processors.base import Bytes, ImageLimits, Normalisation, ProcessedImage
from jaxllm.serving.media.image_processors.normalising import read_normalisation, require_rgb_and_resize
from jaxllm.serving.media.image_processors.settings import (
    CLIP_MEAN,
    CLIP_STD,
    IMAGENET,
    PIXELS,
    SHORTEST,
    SQUARE,
    Settings,
)


@dataclass(frozen=True)
class Single:
    """Pads to a square, resizes, and cuts the centre out; each step may be absent."""

    size: dict[str, int]
    crop: dict[str, int] | None
    padding: tuple[int, ...] | None
    """The colour of what is added to make a square."""
    resample: Image.Resampling
    normalisation: Normalisation

    REQUEST_FIELDS: ClassVar[tuple[str, ...]] = ()

    @property
    def side(self) -> tuple[int, int]:
        """Height and width of the result."""
        fixed = self.crop or self.size
        return fixed["height"], fixed["width"]

    def process(self, image: Bytes) -> ProcessedImage:
        """Process uint8 [height, width, 3] to one crop."""
        height, width = image.shape[:2]
        if self.padding is not None:
            image = pad_to_square(image, self.padding)
        image = resize(image, *edges_of(image, self.size), self.resample)
        if self.crop is not None:
            image = center_crop(image, self.crop["height"], self.crop["width"])
        return ProcessedImage((image,), height, width)

    def limits(self, patch_size: int) -> ImageLimits:
        """Every image gives one crop of the same size."""
        height, width = self.side
        return ImageLimits(1, (height // patch_size) * (width // patch_size))


@dataclass(frozen=True)
class CLIP(Single):
    """`CLIPImageProcessor`: the shortest edge gets a size, and the centre is cut out."""

    @classmethod
    def read(cls, settings: Settings) -> Self:
        """Read a configuration. Raises the error of `settings`."""
        settings.require("use_square_size", False, False)
        settings.ignore("do_pad")
        return cls(*_read_size_and_crop(settings), None, *_read_clip(settings))


@dataclass(frozen=True)
class LLaVA(Single):
    """`LlavaImageProcessor`: as CLIP's, of a square that is padded with the mean colour."""

    @classmethod
    def read(cls, settings: Settings) -> Self:
        """Read a configuration. Raises the error of `settings`."""
        pads = settings.flag("do_pad", False)
        mean = settings.channels("image_mean", CLIP_MEAN)
        color = tuple(int(each * 255) for each in mean)
        return cls(*_read_size_and_crop(settings), color if pads else None, *_read_clip(settings))


@dataclass(frozen=True)
class SigLIP(Single):
    """`SiglipImageProcessor`: resized to one size, whatever the shape."""

    @classmethod
    def read(cls, settings: Settings) -> Self:
        """Read a configuration. Raises the error of `settings`."""
        require_rgb_and_resize(settings)
        settings.require("do_center_crop", False, False)
        settings.ignore("do_pad", "crop_size")
        size = settings.edges("size", {"height": 224, "width": 224}, (SQUARE,), square=False)
        resample = settings.resample(Image.Resampling.BICUBIC)
        return cls(size, None, None, resample, read_normalisation(settings, IMAGENET, IMAGENET))


def _read_clip(settings: Settings) -> tuple[Image.Resampling, Normalisation]:
    require_rgb_and_resize(settings)
    return settings.resample(Image.Resampling.BICUBIC), read_normalisation(settings, CLIP_MEAN, CLIP_STD)


def _read_size_and_crop(settings: Settings) -> tuple[dict[str, int], dict[str, int] | None]:
    size = settings.edges("size", {"shortest_edge": 224}, (SHORTEST, SQUARE, PIXELS), square=False)
    crop = settings.edges("crop_size", {"height": 224, "width": 224}, (SQUARE,))
    if settings.flag("do_center_crop", True):
        return size, crop
    if "height" not in size:
        raise settings.fail("size has no height and width, and do_center_crop is false: images would vary in size")
    return size, None
