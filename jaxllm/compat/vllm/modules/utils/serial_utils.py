"""Arrays as text, for the bodies of requests, and tensors of the bytes of answers."""

import io
import sys
from base64 import b64encode
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from jaxllm.serving.openai.pooling.vectors import DTYPES as EMBED_DTYPES
from jaxllm.serving.openai.pooling.vectors import ORDERS as ENDIANNESS

__all__ = ["EMBED_DTYPES", "ENDIANNESS", "binary2tensor", "numpy2base64", "tensor2base64"]

_OF_TORCH = {"fp8_e4m3": "float8_e4m3fn", "fp8_e5m2": "float8_e5m2"}
"""Names of number formats, where PyTorch has others."""


def binary2tensor(binary: bytes, shape: Sequence[int], embed_dtype: str, endianness: str) -> Any:
    """A tensor of PyTorch from numbers of a format, in `little`, `big` or `native` order of their bytes."""
    torch = import_module("torch")
    order = {"little": "<", "big": ">", "native": "="}[endianness]
    size = EMBED_DTYPES[embed_dtype].itemsize
    words = np.frombuffer(binary, f"{order}i{size}").astype(f"i{size}")
    return torch.from_numpy(words).view(getattr(torch, _OF_TORCH.get(embed_dtype, embed_dtype))).reshape(tuple(shape))


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
