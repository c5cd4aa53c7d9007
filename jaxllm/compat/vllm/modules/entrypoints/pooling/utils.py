"""Vectors in the bytes of an answer, and where each of them is."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jaxllm.compat.vllm.modules.utils.serial_utils import EMBED_DTYPES, binary2tensor

__all__ = ["MetadataItem", "build_metadata_items", "decode_pooling_output"]


@dataclass
class MetadataItem:
    """Where a vector is: bytes `start` to `end`, as numbers of the format `embed_dtype`."""

    index: int
    embed_dtype: str
    endianness: str
    start: int
    end: int
    shape: Sequence[int]


def build_metadata_items(embed_dtype: str, endianness: str, shape: Sequence[int], n_request: int) -> list[MetadataItem]:
    """Metadata of a response with `encoding_format` bytes_only, whose vectors all have the same shape."""
    size = math.prod(shape) * EMBED_DTYPES[embed_dtype].itemsize
    return [
        MetadataItem(index, embed_dtype, endianness, index * size, (index + 1) * size, shape)
        for index in range(n_request)
    ]


def decode_pooling_output(items: list[MetadataItem], body: bytes) -> list[Any]:
    """Tensors of PyTorch, in the order of the texts."""
    ordered = sorted(items, key=lambda item: item.index)
    return [
        binary2tensor(body[each.start : each.end], each.shape, each.embed_dtype, each.endianness) for each in ordered
    ]
