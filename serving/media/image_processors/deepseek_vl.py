"""DeepSeek-VL: an image resized to fit into a square, in the middle of it."""

from dataclasses import dataclass
from typing import ClassVar, Self

from PIL import Image

from jaxllm.serving.media.image_processors.arithmetic import pad_to_square, resize
from jaxllm.serving.media.image_processors.base import Bytes, ImageLimits, Normalisation, ProcessedImage
from jaxllm.serving.media.image_processors.normalising import read_normalisation, require_rgb_and_resize
from jaxllm.serving.media.image_processors.settings import CLIP_MEAN, CLIP_STD, SQUARE, Settings


@dataclass(frozen=True)
class DeepSeekVL:
    """`DeepseekVLImageProcessor`."""

    side: int
    least: int
    """Pixels that the shorter side gets at least."""
    color: tuple[int, ...]
    resample: Image.Resampling
    normalisation: Normalisation

    REQUEST_FIELDS: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def read(cls, settings: Settings) -> Self:
        """Read a configuration. Raises the error of `settings`."""
        require_rgb_and_resize(settings)
        settings.require("do_center_crop", False, False)
        settings.require("do_pad", True, True)
        # The colour comes of the mean, whatever the file says.
        settings.ignore("crop_size", "pad_size", "background_color")
        size = settings.edges("size", {"height": 384, "width": 384}, (SQUARE,))
        if size["height"] != size["width"]:
            raise settings.fail("size must be square")
        side, mean = size["height"], settings.channels("image_mean", CLIP_MEAN)
        return cls(
            side,
            settings.integer("min_size", 14, 1, side),
            tuple(int(each * 255) for each in mean),
            settings.resample(Image.Resampling.BICUBIC),
            read_normalisation(settings, CLIP_MEAN, CLIP_STD),
        )

    def process(self, image: Bytes) -> ProcessedImage:
        """Process uint8 [height, width, 3] to one crop."""
        height, width = image.shape[:2]
        scale = self.side / max(height, width)
        inner_height, inner_width = (max(round(side * scale), self.least) for side in (height, width))
        resized = resize(image, inner_height, inner_width, self.resample)
        return ProcessedImage((pad_to_square(resized, self.color),), height, width)

    def limits(self, patch_size: int) -> ImageLimits:
        """Every image gives one crop of the same size."""
        return ImageLimits(1, (self.side // patch_size) ** 2)
