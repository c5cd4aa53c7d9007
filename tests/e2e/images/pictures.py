"""Pictures for requests."""

import base64
import io
from typing import Any

import numpy as np
from PIL import Image


def picture(seed: int, height: int = 80, width: int = 120) -> Image.Image:
    """A picture of noise."""
    drawn = np.random.default_rng(seed)
    return Image.fromarray(drawn.integers(0, 256, (height, width, 3), dtype=np.uint8))


def data_url(image: Image.Image, kind: str = "png") -> str:
    """The picture as a data: URL."""
    file = io.BytesIO()
    image.save(file, kind)
    return f"data:image/{kind};base64,{base64.b64encode(file.getvalue()).decode()}"


def message(*parts: Any) -> list[Any]:
    """A user's message of texts and images, the latter by their URLs."""
    content = [
        {"type": "image_url", "image_url": {"url": part}} if part.startswith(("data:", "http", "file:")) else
        {"type": "text", "text": part}
        for part in parts
    ]  # fmt: skip
    return [{"role": "user", "content": content}]
