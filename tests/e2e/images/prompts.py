"""Prompts with images, as the engine takes them."""

from collections.abc import Sequence

import numpy as np

from jaxllm.models.towers.patches import cut_patches
from jaxllm.requests.media import ImageCrop, MediaItem, PromptMedia
from jaxllm.requests.request import Request
from tests.e2e.driving import request

PATCH, SIDE, MERGE, IMAGE = 14, 4, 2, 299
"""Pixels of a patch, patches of a crop, patches of a row, each way; and the token in place of a row."""
Parts = Sequence[int | list[np.ndarray]]
"""Token ids and images of a prompt; an image is its crops."""

ROWS = (SIDE // MERGE) ** 2
"""Rows of a crop."""


def pixels(seed: int, crops: int = 1) -> list[np.ndarray]:
    """The crops of a drawn image, uint8 [height, width, 3] each."""
    drawn = np.random.default_rng(seed)
    side = PATCH * SIDE
    return [drawn.integers(0, 256, (side, side, 3), dtype=np.uint8) for _ in range(crops)]


def item(crops: list[np.ndarray]) -> MediaItem:
    """An image as the engine takes it."""
    cut = tuple(ImageCrop(cut_patches(crop, PATCH, MERGE), SIDE, SIDE) for crop in crops)
    return MediaItem.of(cut, MERGE**2)


def seeing(name: object, prompt: Parts, block_size: int = 16, **params: object) -> Request:
    """A request for a prompt of token ids and images."""
    images = [item(part) for part in prompt if isinstance(part, list)]
    token_ids: list[int] = []
    for part in prompt:
        token_ids += [IMAGE] * (len(part) * ROWS) if isinstance(part, list) else [part]
    made = request(name, token_ids, **{"temperature": 0, "ignore_eos": True, **params})
    made.media = PromptMedia.of(tuple(images), made.prompt_token_ids, IMAGE, block_size)
    return made


def drawn_prompts() -> list[Parts]:
    """Eight prompts of text and two images each; some images are in several."""
    drawn = np.random.default_rng(1)
    prompts: list[Parts] = []
    for seed in range(8):
        text = drawn.integers(3, 290, 40).tolist()
        prompts.append([*text[:10], pixels(seed % 5, crops=1 + seed % 3), *text[10:30], pixels(seed), *text[30:]])
    return prompts
