"""Tensors of GGUF files as checkpoints have them: numbers, widened while they are read where they are in blocks."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from jaxllm.models.checkpoint.safetensors_file import CHUNK_BYTES, DTYPES, Tensor
from jaxllm.models.errors import ModelError
from jaxllm.models.quantization.gguf.file import read_parts
from jaxllm.models.quantization.gguf.tensors import NamedTensor, named_tensors
from jaxllm.models.quantization.gguf.types import TYPES_BY_NAME, Array, TensorType
from jaxllm.pallas_kernels.linear.weight_type import QuantizedMatrix


@dataclass(frozen=True)
class GgufNumbers(Tensor):
    """A tensor of a GGUF file, whose rows are put in order and from whose norms 1 is taken."""

    kind: TensorType
    heads: int = 0
    is_shifted: bool = False

    def present(self, values: np.ndarray) -> np.ndarray:
        """A copy where rows are in the order that rotates neighbours."""
        return in_order(values, self.heads)

    def read_into(self, flat: np.ndarray, begin: int) -> None:
        """See `Tensor`; `begin` and the size of `flat` are multiples of a block."""
        if self.kind.blocks is None and not self.is_shifted:
            super().read_into(flat, begin)
            return
        step = CHUNK_BYTES // 4
        with self._open(begin // self.kind.block * self.kind.bytes) as file:
            for start in range(0, flat.size, step):
                part = flat[start : start + step]
                raw = np.empty(part.size // self.kind.block * self.kind.bytes, np.uint8)
                self.fill(file, raw)
                self.store(self._widened(raw) - np.float32(self.is_shifted), part)

    def _widened(self, raw: np.ndarray) -> np.ndarray:
        """The numbers of whole blocks, float32; offsets are added in float64, so that each is rounded once."""
        found = self.kind.blocks
        if found is None:
            return raw.view(DTYPES[self.dtype]).astype(np.float32)
        blocks = raw.reshape(-1, self.kind.bytes)
        scales, count = found.scales(blocks), len(blocks)
        offsets = None if found.offsets is None else found.offsets(blocks)
        check_scales(self, scales, offsets)
        matrix = QuantizedMatrix(
            (count, self.kind.block), found.weight, found.values_of(blocks, count), scales, offsets
        )
        return matrix.dequantized(np.float32 if offsets is None else np.float64).reshape(-1)


def widened_tensors(paths: Sequence[Path]) -> list[Tensor]:
    """All tensors of the parts of a file. Raises `ModelError`."""
    return [_tensor(named) for named in named_tensors(read_parts(paths))]


def check_scales(tensor: Tensor, *numbers: Array | None) -> None:
    """Raise `ModelError` for scales or offsets that are not finite."""
    for each in numbers:
        if each is not None and not np.isfinite(each.astype(np.float32)).all():
            raise ModelError(f"{tensor.path}: tensor {tensor.name!r} has scales that are not finite")


def in_order(values: Array, heads: int) -> Array:
    """Rows of `heads` that were [D / 2, 2] as [2, D / 2]; 0 heads: as they are."""
    if not heads:
        return values
    pairs = values.reshape(heads, -1, 2, *values.shape[1:])
    return np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(values.shape)


def _tensor(named: NamedTensor) -> Tensor:
    tensor = named.tensor
    kind = TYPES_BY_NAME[tensor.type]
    plain = Tensor(named.name, kind.dtype or "F32", tensor.shape, tensor.start, tensor.end, tensor.path)
    if kind.blocks is None and not named.heads and not named.is_shifted:
        return plain
    return GgufNumbers(**vars(plain), kind=kind, heads=named.heads, is_shifted=named.is_shifted)
