"""What every image processor takes and gives."""

from dataclasses import dataclass
from typing import ClassVar, Final, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from jaxllm.serving.media.image_processors.settings import Settings

Bytes = NDArray[np.uint8]
"""An image: uint8 [height, width, 3], RGB."""

CHANNELS: Final = 3


@dataclass(frozen=True)
class ProcessedImage:
    """One image as the vision tower sees it, in bytes: the device rescales and normalises."""

    crops: tuple[Bytes, ...]
    """Tiles and whole images, each uint8 [height, width, 3], in the order in which the tower's output is used."""
    height: int
    """Of the image before processing, in pixels."""
    width: int
    rows: int = 0
    """Rows of tiles among the crops; 0 where the image is not split."""
    columns: int = 0

    @property
    def nbytes(self) -> int:
        """Bytes of all crops."""
        return sum(crop.nbytes for crop in self.crops)


@dataclass(frozen=True)
class Normalisation:
    """How the device makes floats of bytes: (byte * rescale_factor - mean) / std, per channel; None skips a step."""

    rescale_factor: float | None
    mean: tuple[float, ...] | None
    std: tuple[float, ...] | None
    rounds: bool = False
    """Whether what each step gives is rounded to bfloat16."""


@dataclass(frozen=True)
class ImageLimits:
    """The most that one image may become."""

    crops: int
    patches: int
    """Of all crops together, before the tower merges any."""


class ImageProcessor(Protocol):
    """Turns images into crops. Immutable, and shared by threads."""

    REQUEST_FIELDS: ClassVar[tuple[str, ...]]
    """Fields that a request may set, since the tower takes what comes of it."""

    @classmethod
    def read(cls, settings: Settings) -> Self:
        """Read a configuration; the caller then checks that every field was read."""
        ...

    @property
    def normalisation(self) -> Normalisation:
        """What the device does with the bytes."""
        ...

    def process(self, image: Bytes) -> ProcessedImage:
        """Process uint8 [height, width, 3]. Raises `RequestError` for a shape that the model cannot take."""
        ...

    def limits(self, patch_size: int) -> ImageLimits:
        """The most that any image becomes, for a tower whose patches have `patch_size` pixels a side."""
        ...
