"""What the published code of Phi-3-Vision makes of an image, `processing_phi3_v.py`, by Pillow and torch."""

import numpy as np
import torch
from PIL import Image, ImageOps

from jaxllm.serving.media.image_processors.arithmetic import normalised
from jaxllm.serving.media.image_processors.base import Normalisation
from jaxllm.serving.media.image_processors.settings import CLIP_MEAN, CLIP_STD


def canvas_of(image: np.ndarray, side: int, most: int) -> np.ndarray:
    """The image between white bars, uint8 [n * side, m * side, 3]: as many columns as `most` crops allow."""
    picture = Image.fromarray(image)
    is_high = picture.width < picture.height
    if is_high:
        picture = picture.transpose(Image.Transpose.TRANSPOSE)
    ratio = picture.width / picture.height
    columns = max(each for each in range(1, most + 1) if each * np.ceil(each / ratio) <= most)
    resized = picture.resize((columns * side, int(columns * side / ratio)), Image.Resampling.BILINEAR)
    missing = -resized.height % side
    above = int(missing / 2)
    padded = ImageOps.expand(resized, (0, above, 0, missing - above), fill=(255, 255, 255))
    return np.asarray(padded.transpose(Image.Transpose.TRANSPOSE) if is_high else padded)


def crops_of(canvas: np.ndarray, side: int) -> torch.Tensor:
    """The whole image and its crops, float32 [1 + n * m, 3, side, side], of a canvas."""
    plan = Normalisation(1 / 255, CLIP_MEAN, CLIP_STD)
    numbers = torch.from_numpy(normalised(canvas, plan).transpose(2, 0, 1).copy())
    whole = torch.nn.functional.interpolate(numbers[None], (side, side), mode="bicubic")
    rows = [each.split(side, dim=2) for each in numbers.split(side, dim=1)]
    return torch.cat([whole, torch.stack([crop for row in rows for crop in row])])
