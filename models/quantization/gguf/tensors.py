"""Tensors of a GGUF file under the names, and in the order of rows, that other checkpoints have."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from jaxllm.models.errors import ModelError
from jaxllm.models.quantization.gguf.architectures import Architecture, architecture_of
from jaxllm.models.quantization.gguf.file import GgufFile, GgufTensor

_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_IN_CONFIG = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
"""Tensors that the configuration is made of, see `config.py`."""
_IN_LAYER = re.compile(r"blk\.(\d{1,5})\.([a-z_]+)\.(weight|bias)")


@dataclass(frozen=True)
class NamedTensor:
    """A tensor, or one expert's part of it, and what its rows are.

    `heads` have rows in the order that rotates neighbours: those of a head were [2, D / 2] and are [D / 2, 2].
    `is_shifted`: 1 was added.
    """

    name: str
    tensor: GgufTensor
    heads: int = 0
    is_shifted: bool = False


def named_tensors(file: GgufFile) -> list[NamedTensor]:
    """The named tensors of a header. Raises `ModelError` for one without a place."""
    architecture = architecture_of(file)
    return [
        named
        for tensor in file.tensors
        if tensor.name not in _IN_CONFIG
        for named in _named(file, architecture, tensor)
    ]


def _named(file: GgufFile, architecture: Architecture, tensor: GgufTensor) -> Iterator[NamedTensor]:
    name, _, parameter = tensor.name.rpartition(".")
    found = _IN_LAYER.fullmatch(tensor.name)
    shifted = architecture.has_shifted_norms and name.endswith("norm")
    if found is None:
        if name not in _OUTSIDE or parameter not in ("weight", "bias"):
            raise ModelError(f"{file.path}: tensor {tensor.name[:80]!r} does not belong in {architecture.model}")
        yield NamedTensor(f"{_OUTSIDE[name]}.{parameter}", tensor, is_shifted=shifted)
        return
    layer, leaf, parameter = found.groups()
    block = f"model.layers.{int(layer)}"
    if leaf in architecture.experts and len(tensor.shape) == 3:
        count = file.metadata.get(f"{file.architecture}.expert_count")
        if tensor.shape[0] != count:
            raise ModelError(
                f"{file.path}: tensor {tensor.name!r} has {tensor.shape[0]} experts, but the model has {count}"
            )
        for expert, part in enumerate(_apart(tensor)):
            module = architecture.experts[leaf].format(expert=expert)
            yield NamedTensor(f"{block}.{module}.{parameter}", part)
    elif leaf in architecture.leaves:
        heads = _heads(file, leaf, tensor) if architecture.is_permuted else 0
        yield NamedTensor(f"{block}.{architecture.leaves[leaf]}.{parameter}", tensor, heads, shifted)
    else:
        raise ModelError(f"{file.path}: tensor {tensor.name[:80]!r} does not belong in {architecture.model}")


def _apart(tensor: GgufTensor) -> Iterator[GgufTensor]:
    """Split a tensor of all experts [E, out, in] into one per expert."""
    experts, *shape = tensor.shape
    size = (tensor.end - tensor.start) // experts
    for expert in range(experts):
        start = tensor.start + expert * size
        yield GgufTensor(tensor.name, tensor.type, tuple(shape), start, start + size, tensor.path)


def _heads(file: GgufFile, leaf: str, tensor: GgufTensor) -> int:
    """How many heads the rows of queries or keys are of; 0 for all else."""
    if leaf not in ("attn_q", "attn_k"):
        return 0
    key = f"{file.architecture}.attention.head_count"
    queries: Any = file.metadata.get(key)
    count: Any = file.metadata.get(f"{key}_kv", queries) if leaf == "attn_k" else queries
    if isinstance(count, np.ndarray) and count.size:
        count = count[0].item()  # One for each layer; the configuration has found them to be the same.
    if not isinstance(count, int) or count < 1 or tensor.shape[0] % (2 * count):
        raise ModelError(
            f"{file.path}: tensor {tensor.name!r} has {tensor.shape[0]} rows, which {count} heads do not divide"
        )
    return count
