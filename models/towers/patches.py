"""Cutting an image into the patches that a tower takes, on the host.

Axis letters: H, W height and width in pixels, C channels, P patches, B bytes of a patch.
"""

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]


def cut_patches(pixels: Pixels, patch_size: int, merge: int, fill: int | None = None) -> Pixels:
    """Patches [P, B] of `pixels` [H, W, C], in the order of `TowerPlan`; their bytes by height, width and channel.

    Pixels beyond the last whole patch are not seen, as convolutions do it. Patches each way must be a multiple of
    `merge`, unless there is a byte to `fill` them up with.
    """
    height, width = (length // patch_size * patch_size for length in pixels.shape[:2])
    channels, side = pixels.shape[2], patch_size * merge
    pixels = pixels[:height, :width]
    if fill is not None:
        pixels = np.pad(pixels, ((0, -height % side), (0, -width % side), (0, 0)), constant_values=fill)
        height, width = pixels.shape[:2]
    assert height % side == 0
    assert width % side == 0
    # Rows of squares, rows of patches in each, rows of pixels in those; likewise across.
    split = pixels.reshape(height // side, merge, patch_size, width // side, merge, patch_size, channels)
    return split.transpose(0, 3, 1, 4, 2, 5, 6).reshape(-1, patch_size * patch_size * channels)
