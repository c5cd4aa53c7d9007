"""Numbers between those of bytes: three bytes each, in steps of 1/1024.

An image that is resized after it became floats has such numbers: Phi-4's by the half of a factor, see `Phi4Multimodal`
of `jaxllm.serving.media.image_processors`. Cubic weights of half a pixel are multiples of 1/32, those of both ways
together of 1/1024. So nothing is rounded.

Axis letters: P patches, B numbers of a patch.
"""

from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:  # The server's process has images, but no device.
    import jax

STEPS: Final = 1024
"""Steps from one byte's number to the next."""
_ZERO: Final = 1 << 19
"""What stands for 0: cubic weights give numbers below it."""
WIDTH: Final = 3
"""Bytes of a number, the lowest first."""


def fine_steps(steps: npt.NDArray[np.int32]) -> npt.NDArray[np.uint8]:
    """Bytes uint8 [..., n * WIDTH] of numbers int32 [..., n], which count steps, each of less than 2 ** 19."""
    shifted = (steps + _ZERO)[..., None] >> np.array([0, 8, 16])
    return (shifted & 0xFF).astype(np.uint8).reshape(*steps.shape[:-1], -1)


def fine_bytes(patches: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """The same bytes, uint8 [P, B], as such numbers, uint8 [P, B * WIDTH]."""
    return fine_steps(patches.astype(np.int32) * STEPS)


def fine_numbers(patches: "jax.Array") -> "jax.Array":
    """The numbers float32 [P, B], exactly, of uint8 [P, B * WIDTH]."""
    parts = patches.reshape(len(patches), -1, WIDTH).astype(np.int32)
    steps = (parts * np.array([1, 1 << 8, 1 << 16], np.int32)).sum(axis=-1) - _ZERO
    return steps.astype(np.float32) / STEPS
