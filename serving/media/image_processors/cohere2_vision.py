"""Command A Vision: tiles of the grid that needs least enlarging, and then the whole."""

from dataclasses import dataclass
from typing import ClassVar, Self

from PIL import Image

from jaxllm.serving.media.image_processors.got_ocr2 import GotOcr2, grids
from jaxllm.serving.media.image_processors.normalising import read_normalisation, require_rgb_and_resize
from jaxllm.serving.media.image_processors.settings import CLIP_MEAN, CLIP_STD, SQUARE, Settings


@dataclass(frozen=True)
class Cohere2Vision(GotOcr2):
    """`Cohere2VisionImageProcessor`."""

    tokens_each_way: int = 16
    """Of a tile, which the configuration calls the size of a patch."""

    REQUEST_FIELDS: ClassVar[tuple[str, ...]] = ("crop_to_patches", "max_patches")

    @classmethod
    def read(cls, settings: Settings) -> Self:
        """Read a configuration. Raises the error of `settings`."""
        require_rgb_and_resize(settings)
        settings.require("do_center_crop", False, False)
        # transformers reads the least number of tiles and does nothing with it.
        settings.ignore("do_pad", "crop_size", "min_patches")
        size = settings.edges("size", {"height": 512, "width": 512}, (SQUARE,))
        if size["height"] != size["width"]:
            raise settings.fail("size must be square")
        cuts, most = settings.flag("crop_to_patches", True), settings.integer("max_patches", 12, 1, 256)
        return cls(
            size["height"],
            size["width"],
            grids(1, most) if cuts else ((1, 1),),
            settings.resample(Image.Resampling.BICUBIC),
            read_normalisation(settings, CLIP_MEAN, CLIP_STD),
            settings.integer("patch_size", 16, 1, 256),
        )

    def _grid(self, height: int, width: int) -> tuple[int, int]:
        """The first grid that needs least enlarging, or else least shrinking."""
        scales = [min(columns * self.width / width, rows * self.height / height) for columns, rows in self.grids]
        larger = [scale for scale in scales if scale >= 1]
        return self.grids[scales.index(min(larger) if larger else max(scales))]
