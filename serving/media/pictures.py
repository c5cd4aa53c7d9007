"""Images that are given as objects: of Pillow, or arrays."""

from typing import Any

import numpy as np
from PIL import Image, ImageOps

from jaxllm.errors import RequestError
from jaxllm.serving.media.decode import WHITE, to_rgb
from jaxllm.serving.media.image_processors.base import Bytes


def pixels_of(image: Any, parameter: str = "multi_modal_data") -> Bytes:
    """uint8 [height, width, 3] of an image of Pillow, or of an array of that shape. Raises `RequestError`."""
    if isinstance(image, Image.Image):
        turned = ImageOps.exif_transpose(image)
        return np.asarray(to_rgb(turned, WHITE))
    array = np.asarray(image)
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3 or not array.size:
        raise RequestError(
            f"{parameter}: expected an image of Pillow, or an array uint8 [height, width, 3], got "
            f"{type(image).__name__} of type {array.dtype} and shape {list(array.shape)}",
            parameter,
        )
    return np.ascontiguousarray(array)
