"""What configurations say of the step from bytes to floats, and of other fields that most processors share."""

from jaxllm.serving.media.image_processors.base import Normalisation
from jaxllm.serving.media.image_processors.settings import Settings


def read_normalisation(
    settings: Settings, mean: tuple[float, ...], std: tuple[float, ...], *, normalize: bool = True
) -> Normalisation:
    """Read do_rescale, rescale_factor, do_normalize, image_mean and image_std, with a processor's defaults."""
    rescales, normalizes = settings.flag("do_rescale", True), settings.flag("do_normalize", normalize)
    factor = settings.number("rescale_factor", 1 / 255, 0.0, 1e3)
    found_mean, found_std = settings.channels("image_mean", mean), settings.channels("image_std", std)
    if normalizes and 0.0 in found_std:
        raise settings.fail("image_std has a zero")
    return Normalisation(
        factor if rescales else None, found_mean if normalizes else None, found_std if normalizes else None
    )


def require_rgb_and_resize(settings: Settings) -> None:
    """Check that images become RGB and are resized: towers take nothing else."""
    settings.require("do_convert_rgb", True, True)
    settings.require("do_resize", True, True)
