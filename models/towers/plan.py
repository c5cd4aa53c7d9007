"""The description of a tower: what it is made of, and the sizes of what goes in and comes out.

Axis letters: P patches, B bytes of a patch, V hidden size of the transformer, D hidden size of the language model.
"""

from dataclasses import dataclass, replace
from math import isqrt
from typing import Literal, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxllm.models.options import ForwardOptions
from jaxllm.models.towers.crop import Crop
from jaxllm.models.towers.fine_bytes import WIDTH, fine_bytes, fine_numbers
from jaxllm.models.towers.patches import Pixels


@dataclass(frozen=True)
class PixelPlan:
    """How bytes become numbers: times `rescale`, less `mean`, divided by `std`, one of each for every channel.

    With `rounds`, what each step gives is rounded to bfloat16. With `is_fine`, patches have three bytes for
    each number, see `jaxllm.models.towers.fine_bytes`.
    """

    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    rescale: float = 1 / 255
    rounds: bool = False
    is_fine: bool = False

    def numbers(self, patches: jax.Array) -> jax.Array:
        """Numbers float32 [P, B] of the bytes of patches, uint8 [P, B], or [P, 3 B] if fine. Channels come last."""
        given = fine_numbers(patches) if self.is_fine else patches
        mean, std = jnp.array(self.mean, jnp.float32), jnp.array(self.std, jnp.float32)
        by_channel = given.reshape(len(given), -1, len(self.mean)).astype(jnp.float32)
        scaled = self._rounded(by_channel * jnp.float32(self.rescale))
        return self._rounded(self._rounded(scaled - self._rounded(mean)) / self._rounded(std)).reshape(given.shape)

    def _rounded(self, x: jax.Array) -> jax.Array:
        # A conversion to bfloat16 and back may be left out by compilers.
        return lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7) if self.rounds else x


class VisionModel(Protocol):
    """A module that sees patches."""

    def __call__(self, patches: jax.Array, crop: Crop) -> jax.Array:
        """Hidden states [P, V] of the `patches` uint8 [P, B] of a crop; their bytes by height, width and channel.

        Where a tower has class rows, so many more, at first.
        """
        ...


class Projector(Protocol):
    """A module that makes rows of hidden states."""

    def __call__(self, hidden: jax.Array, num_rows: jax.Array) -> jax.Array:
        """Rows [P / patches_per_row, D] of hidden states [P, V]. Those from `num_rows` on mean nothing.

        Where crops have the same number of rows, so many; the first `num_rows` of [P, V] count then.
        """
        ...


class VisionPlan(Protocol):
    """A vision model's description."""

    @property
    def hidden_size(self) -> int:
        """V, what the projector is given for each patch."""
        ...

    @property
    def patch_size(self) -> int:
        """Pixels on each side of a patch."""
        ...

    @property
    def channels(self) -> int:
        """Numbers per pixel."""
        ...

    def make(self, pixels: PixelPlan, options: ForwardOptions, dtype: jnp.dtype) -> VisionModel:
        """The module, which also turns bytes into numbers."""
        ...


class ProjectorPlan(Protocol):
    """A projector's description."""

    def make(
        self, vision: VisionPlan, patches_per_row: int, hidden_size: int, options: ForwardOptions, dtype: jnp.dtype
    ) -> Projector:
        """The module, for a language model of this hidden size."""
        ...


@dataclass(frozen=True, kw_only=True)
class TowerPlan:
    """A tower for images: a vision model, and a projector of what it gives to rows of the language model.

    A square of `merge` patches each way becomes one row. Patches come square by square, each square row by row, and the
    squares likewise. An image is one crop or several; each is seen alone.
    """

    vision: VisionPlan
    projector: ProjectorPlan
    merge: int
    token_id: int
    """The token that stands where a row of an image goes; -1: not known before a tokenizer is there."""
    token: str | None = None
    """Its text, where the tokenizer's files say its number and the configuration does not."""
    sizes: tuple[int, ...] = ()
    """The sizes of crops, in patches, that are computed by a program each, the smallest first.

    None where crops may have any size: then an engine chooses them, see `sized`.
    """
    side: int | None = None
    """Patches each way of every crop, or None where crops vary."""
    tile_side: int | None = None
    """The same of tiles, where these are smaller than whole images."""
    class_rows: int = 0
    """Rows of a crop that are not of patches, and come before those."""
    crop_rows: int | None = None
    """Rows of every crop, whatever its size, where squares of patches do not become one each."""
    has_learned_row: bool = False
    """Whether a learned row comes before all others of a crop, which stands where an arrangement puts it."""
    has_sums: bool = False
    """Whether an image of several crops may have sums of their rows in place of these, no more than there are rows."""
    pixels: PixelPlan = PixelPlan()
    row_parts: int = 1
    """Parts of a row, of D numbers each: the first stands in place of a token, others are added after first layers."""
    pad_token_id: int = 0
    """The token whose inputs of the layers rows of images have, where layers have some (`TokenInputsPlan`)."""
    most_rows_field: str | None = None
    """The image processor's field of the most rows of an image, where that decides about `sizes`."""
    video_token_id: int | None = None
    """The token that stands where a row of a video goes, where that is another one."""
    frames: int = 1
    """Frames of a video that a patch spans; an image fills all of them."""
    tokens_per_second: int | None = None
    """Positions in time that a second of a video takes; None: each patch in time takes one."""
    fill: int | None = None
    """The byte of patches that fill up crops to whole squares, or None where crops have whole squares.

    Others do not see these patches. A row is also of those of its square.
    """
    spans: Literal["images", "prompt"] | None = None
    """The tokens that see one another in layers with `AttentionPlan.sees_spans`: those of neighbouring rows, or all of
    a prompt with images."""

    @property
    def patch_bytes(self) -> int:
        """Bytes of a patch: frames, height, width and channels."""
        numbers = self.frames * self.vision.patch_size**2 * self.vision.channels
        return numbers * WIDTH if self.pixels.is_fine else numbers

    def whole(self, patches: Pixels) -> Pixels:
        """Patches of an image, which may have a byte per number, and those of one frame, as the tower takes them.

        The image then fills all frames.
        """
        if patches.shape[1] == self.patch_bytes:
            return patches
        return fine_bytes(patches) if self.pixels.is_fine else np.tile(patches, (1, self.frames))

    @property
    def patches_per_row(self) -> int:
        """Patches that become one row."""
        return self.merge**2

    @property
    def most_patches(self) -> int:
        """Patches of the largest crop."""
        return self.sizes[-1]

    @property
    def first_rows(self) -> int:
        """Rows of a crop before those of its patches."""
        return self.class_rows + self.has_learned_row

    def sized(self, most: int) -> "TowerPlan":
        """The plan with programs for crops of at most `most` patches."""
        return replace(self, sizes=program_sizes(most - most % self.patches_per_row, self.patches_per_row))

    def rows_of(self, num_patches: int) -> int:
        """Rows that a crop of so many patches becomes."""
        if self.crop_rows is not None:
            return self.crop_rows
        return self.first_rows + num_patches // self.patches_per_row

    def targets_of(self, num_patches: int) -> int:
        """Rows in a prompt that a crop of so many patches has a part in, at most.

        Sums of neighbours, where there are fewer sums than rows each way, reach over the edge by less than a row.
        """
        if not self.has_sums:
            return self.rows_of(num_patches)
        return self.first_rows + (isqrt(num_patches // self.patches_per_row) + 1) ** 2


def program_sizes(most: int, patches_per_row: int, *, least: int = 256, step: int = 4) -> tuple[int, ...]:
    """Sizes for crops of at most `most` patches, in whole rows: each about `step` times the one before it."""
    sizes, size = [], least
    while size < most:
        sizes.append(-(-size // patches_per_row) * patches_per_row)
        size *= step
    return (*(each for each in sizes if each < most), most)
