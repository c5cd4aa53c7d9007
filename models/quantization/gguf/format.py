"""Matrices of few bits in GGUF files."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cached_property

import ml_dtypes
import numpy as np

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.safetensors_file import CHUNK_BYTES, Tensor
from jaxllm.models.errors import ModelError
from jaxllm.models.quantization.format import Format, MatrixTensor
from jaxllm.models.quantization.gguf.types import TYPES_BY_NAME, Blocks
from jaxllm.models.quantization.gguf.widened import GgufNumbers, check_scales, in_order
from jaxllm.pallas_kernels.linear.weight_type import QuantizedMatrix, WeightType


@dataclass(frozen=True)
class GgufMatrix(MatrixTensor):
    """A matrix in blocks."""

    source: GgufNumbers

    def read(self) -> QuantizedMatrix:
        """See `MatrixTensor`. Some rows at a time, so that little but the matrix is in memory."""
        source, found = self.source, self.source.kind.blocks
        assert found is not None
        per_row = self.num_bytes // self.shape[0]
        step = max(1, CHUNK_BYTES // per_row)
        scales_type = np.dtype(ml_dtypes.bfloat16 if self.kind.scales == "bfloat16" else self.kind.scales)
        values = np.empty(self.kind.values_shape(self.shape), self.kind.array_type)
        scales = np.empty(self.kind.scales_shape(self.shape), scales_type)
        offsets = None if found.offsets is None else np.empty_like(scales)
        for first in range(0, self.shape[0], step):
            rows = slice(first, min(first + step, self.shape[0]))
            raw = np.empty((rows.stop - first) * per_row, np.uint8)
            source.read_bytes(raw, first * per_row)
            blocks = raw.reshape(-1, source.kind.bytes)
            values[rows] = found.values_of(blocks, rows.stop - first)
            scales[rows] = found.scales(blocks).reshape(-1, scales.shape[1])
            if offsets is not None and found.offsets is not None:
                offsets[rows] = found.offsets(blocks).reshape(-1, scales.shape[1])
        check_scales(source, scales, offsets)
        ordered = (None if each is None else in_order(each, source.heads) for each in (values, scales, offsets))
        return QuantizedMatrix(self.shape, self.kind, *ordered)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Gguf(Format):
    """`types` are those of matrices, by the names of their modules: "model.layers.0.mlp.down_proj" and "Q4_K"."""

    types: tuple[tuple[str, str], ...]

    def weight_type(self, name: str) -> WeightType | None:
        """See `Format`."""
        kind = self._types.get(name.removesuffix(".weight"))
        return None if kind is None else _blocks(kind).weight

    @cached_property
    def _types(self) -> Mapping[str, str]:
        return dict(self.types)

    def matrices(self, tensors: Mapping[str, Tensor], wanted: Collection[str]) -> Mapping[str, MatrixTensor]:
        """See `Format`."""
        found: dict[str, MatrixTensor] = {}
        for name in wanted:
            tensor = tensors.get(name)
            if isinstance(tensor, GgufNumbers) and tensor.kind.blocks is not None:
                if len(tensor.shape) != 2 or tensor.is_shifted:
                    raise ModelError(
                        f"{tensor.path}: tensor {name!r} is {tensor.kind.name}, but not a matrix of the model"
                    )
                size, kind = tensor.end - tensor.start, tensor.kind.blocks.weight
                shape = (tensor.shape[0], tensor.shape[1])
                found[name] = GgufMatrix(name, tensor.path, shape, kind, size, (tensor.name,), tensor)
        return found


def read_format(section: ConfigFile) -> Gguf:
    """From the section that was made of a file. Raises `ModelError`."""
    types = section.section("types")
    return Gguf(() if types is None else tuple((name, types.text(name)) for name in types.values))


def _blocks(kind: str) -> Blocks:
    found = TYPES_BY_NAME[kind].blocks if kind in TYPES_BY_NAME else None
    if found is None:
        raise ModelError(f"quantization_config: type {kind!r} is not a block type of GGUF")
    return found
