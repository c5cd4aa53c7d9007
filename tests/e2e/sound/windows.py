"""Windows of sound for a small Whisper, and requests about them."""

import numpy as np

from jaxllm.requests.media import MediaItem, PromptMedia
from jaxllm.requests.request import Request
from tests.e2e.driving import request

BINS, FRAMES, VOCABULARY, START = 16, 80, 160, 1

Features = np.ndarray
"""Log-mel features of a window, float32 [bins, frames]."""


def window(seed: int, bins: int = BINS, frames: int = FRAMES) -> Features:
    """A window of drawn features."""
    return np.random.default_rng(seed).normal(size=(bins, frames)).astype(np.float32)


def hearing(name: object, features: Features, prompt: list[int], **params: object) -> Request:
    """A request for a prompt of token ids about a window."""
    made = request(name, prompt, **{"temperature": 0, "ignore_eos": True, **params})
    made.media = PromptMedia.of_sound(MediaItem.of_sound(features))
    return made
