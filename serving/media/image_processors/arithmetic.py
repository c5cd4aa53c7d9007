"""Operations on images that processors share, bit-equal to transformers' PIL back end."""

import math
from typing import Final

import numpy as np
from ml_dtypes import bfloat16
from numpy.typing import NDArray
from PIL import Image

from jaxllm.errors import RequestError
from jaxllm.serving.media.image_processors.base import CHANNELS, Bytes, Normalisation

MOST_PIXELS: Final = 1 << 26
"""Pixels that an image may have after a step of processing: 192 MiB. A strip of 1 x 30,000 could become far more."""


def check_pixels(height: int, width: int, image: Bytes) -> None:
    """Raise `RequestError` for a size that no step may produce; `image` is what it would be made of."""
    if height < 1 or width < 1 or height * width > MOST_PIXELS:
        raise RequestError(
            f"an image of {image.shape[1]}x{image.shape[0]} pixels would be resized to {width}x{height}; at most "
            f"{MOST_PIXELS} pixels are allowed: send an image whose sides differ less",
            "image_url",
        )


def resize(image: Bytes, height: int, width: int, resample: Image.Resampling) -> Bytes:
    """Resize uint8 [H, W, 3] with Pillow. Raises `RequestError` for too large a result, and for no pixels."""
    if not image.size:
        raise RequestError("the image is too small to be cut into pieces", "image_url")
    check_pixels(height, width, image)
    return np.asarray(Image.fromarray(image).resize((width, height), resample=resample))


def edges_of(image: Bytes, size: dict[str, int]) -> tuple[int, int]:
    """Height and width that an image is resized to: given, or from its shortest and longest edge."""
    height, width = image.shape[:2]
    match size:
        case {"height": fixed_height, "width": fixed_width}:
            return fixed_height, fixed_width
        case {"shortest_edge": shortest, "longest_edge": longest}:
            return _between(height, width, shortest, longest)
    shortest = size["shortest_edge"]
    short, long = min(height, width), max(height, width)
    new_long = int(shortest * long / short)
    return (new_long, shortest) if width <= height else (shortest, new_long)


def _between(height: int, width: int, shortest: int, longest: int) -> tuple[int, int]:
    raw: float | None = None
    small, large = float(min(height, width)), float(max(height, width))
    if large / small * shortest > longest:
        raw = longest * small / large
        shortest = round(raw)
    if (height <= width and height == shortest) or (width <= height and width == shortest):
        return height, width
    scale = shortest if raw is None else raw
    if width < height:
        return int(scale * height / width), shortest
    return shortest, int(scale * width / height)


def center_crop(image: Bytes, height: int, width: int) -> Bytes:
    """Cut the centre out; a smaller image is first padded with zeros."""
    given_height, given_width = image.shape[:2]
    top, left = (given_height - height) // 2, (given_width - width) // 2
    if top >= 0 and left >= 0 and top + height <= given_height and left + width <= given_width:
        # A copy: a view would keep all of the image.
        return image[top : top + height, left : left + width].copy()
    new_height, new_width = max(height, given_height), max(width, given_width)
    check_pixels(new_height, new_width, image)
    padded = np.zeros((new_height, new_width, CHANNELS), np.uint8)
    above, before = math.ceil((new_height - given_height) / 2), math.ceil((new_width - given_width) / 2)
    padded[above : above + given_height, before : before + given_width] = image
    top, left = top + above, left + before
    return padded[max(0, top) : min(new_height, top + height), max(0, left) : min(new_width, left + width)].copy()


def pad_to_square(image: Bytes, color: tuple[int, ...]) -> Bytes:
    """Put an image into the middle of a square of one colour."""
    height, width = image.shape[:2]
    if height == width:
        return image
    side = max(height, width)
    check_pixels(side, side, image)
    square = np.empty((side, side, CHANNELS), np.uint8)
    square[:] = color
    top, left = (side - height) // 2, (side - width) // 2
    square[top : top + height, left : left + width] = image
    return square


def tiles(image: Bytes, height: int, width: int) -> tuple[Bytes, ...]:
    """Cut an image into tiles of a size that divides it, row by row."""
    return tuple(
        image[top : top + height, left : left + width]
        for top in range(0, image.shape[0], height)
        for left in range(0, image.shape[1], width)
    )


def patches(crop: Bytes, patch_size: int) -> NDArray[np.uint8]:
    """Patches of uint8 [H, W, 3], row by row: uint8 [P, patch_size * patch_size * 3], in order height, width, channel.

    What a side has beyond a multiple of `patch_size` is left out, as convolutions do.
    """
    rows, columns = crop.shape[0] // patch_size, crop.shape[1] // patch_size
    whole = crop[: rows * patch_size, : columns * patch_size]
    split = whole.reshape(rows, patch_size, columns, patch_size, CHANNELS)
    return split.transpose(0, 2, 1, 3, 4).reshape(rows * columns, patch_size * patch_size * CHANNELS)


def merged_patches(crop: Bytes, patch_size: int, merge_size: int = 2) -> NDArray[np.uint8]:
    """Patches as towers of Qwen's kind take them: the `merge_size` x `merge_size` patches of a token are neighbours.

    Shapes and the order inside a patch are those of `patches`. Both sides of the crop must be multiples of
    `patch_size * merge_size`; processors of these models see to that.
    """
    side = patch_size * merge_size
    assert crop.shape[0] % side == crop.shape[1] % side == 0
    rows, columns = crop.shape[0] // side, crop.shape[1] // side
    split = crop.reshape(rows, merge_size, patch_size, columns, merge_size, patch_size, CHANNELS)
    ordered = split.transpose(0, 3, 1, 4, 2, 5, 6)
    return ordered.reshape(rows * columns * merge_size**2, patch_size * patch_size * CHANNELS)


def normalised(crop: Bytes, plan: Normalisation) -> NDArray[np.float32]:
    """The floats that transformers gives a tower, channels last: float32 [H, W, 3].

    Rescaled in float64 and rounded to float32, then normalised in float32. Where the plan rounds to bfloat16, each step
    is made in float32 before.
    """
    if plan.rounds:
        return _rounded(crop, plan)
    values: NDArray[np.float32] = crop.astype(np.float32)
    if plan.rescale_factor is not None:
        values = (crop.astype(np.float64) * plan.rescale_factor).astype(np.float32)
    if plan.mean is not None and plan.std is not None:
        mean, std = np.asarray(plan.mean, np.float32), np.asarray(plan.std, np.float32)
        values = (values - mean) / std
    return values


def _rounded(crop: Bytes, plan: Normalisation) -> NDArray[np.float32]:
    values: NDArray[np.float32] = crop.astype(np.float32)
    for step, numbers in ((np.multiply, plan.rescale_factor), (np.subtract, plan.mean), (np.divide, plan.std)):
        operand = np.asarray(numbers, np.float32)
        if step is not np.multiply:
            operand = operand.astype(bfloat16).astype(np.float32)
        values = step(values, operand).astype(bfloat16).astype(np.float32)
    return values
