"""Prompts with images of any size, as the engine takes them."""

from collections.abc import Sequence

import numpy as np

from jaxllm.models.towers.patches import cut_patches
from jaxllm.requests.media import ImageCrop, MediaItem, PromptMedia
from jaxllm.requests.request import Request
from tests.e2e.driving import request

PATCH, MERGE, START, END, IMAGE, VIDEO = 4, 2, 296, 297, 298, 299
"""Pixels of a patch, patches of a row, each way; and the tokens around images, and in their places."""

Pixels = np.ndarray
"""uint8 [height, width, 3]"""
Parts = Sequence[int | Pixels]
"""Token ids and images of a prompt."""


def pixels(seed: int, rows: int, columns: int) -> Pixels:
    """An image of so many rows of the language model each way."""
    drawn = np.random.default_rng(seed)
    side = PATCH * MERGE
    return drawn.integers(0, 256, (rows * side, columns * side, 3), dtype=np.uint8)


def crop_of(image: Pixels) -> ImageCrop:
    """An image as the engine takes it."""
    return ImageCrop(cut_patches(image, PATCH, MERGE), image.shape[0] // PATCH, image.shape[1] // PATCH)


def item(image: Pixels) -> MediaItem:
    """The same, with its digest."""
    return MediaItem.of((crop_of(image),), MERGE**2)


def token_ids(prompt: Parts) -> list[int]:
    """The tokens of a prompt, with those around images."""
    found: list[int] = []
    for part in prompt:
        if isinstance(part, int):
            found.append(part)
        else:
            rows = part.shape[0] * part.shape[1] // (PATCH * MERGE) ** 2
            found += [START, *[IMAGE] * rows, END]
    return found


def seeing(name: object, prompt: Parts, block_size: int = 16, **params: object) -> Request:
    """A request for a prompt of token ids and images."""
    made = request(name, token_ids(prompt), **{"temperature": 0, "ignore_eos": True, **params})
    images = tuple(item(part) for part in prompt if not isinstance(part, int))
    if images:
        made.media = PromptMedia.of(images, made.prompt_token_ids, IMAGE, block_size)
    return made


def drawn_prompts() -> list[Parts]:
    """Prompts of text and two images of different sizes; some images are in several."""
    drawn = np.random.default_rng(1)
    prompts: list[Parts] = []
    for seed in range(6):
        text = drawn.integers(3, 290, 40).tolist()
        first, second = pixels(seed % 4, 2 + seed % 4, 3), pixels(10 + seed, 3, 2 + seed)
        prompts.append([*text[:10], first, *text[10:30], second, *text[30:]])
    return prompts
