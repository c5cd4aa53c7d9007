"""Arrays as text, for the bodies of requests."""

import io
import sys
from base64 import b64encode
from typing import Any

import numpy as np

__all__ = ["numpy2base64", "tensor2base64"]


def tensor2base64(x: Any) -> str:
    """A tensor of PyTorch as a file of `torch.save`, in base64."""
    file = io.BytesIO()
    # Whoever has a tensor has imported it.
    sys.modules["torch"].save(x, file)
    return b64encode(file.getbuffer()).decode("ascii")


def numpy2base64(array: np.ndarray) -> str:
    """An array as a file of `numpy.save`, in base64."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return b64encode(file.getbuffer()).decode("ascii")
