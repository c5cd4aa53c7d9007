"""Experts in MXFP4, as gpt-oss has them: blocks of 32 numbers of four bits that share a power of two.

Format: OCP Microscaling Formats (MX) 1.0, section 5.3.3. What an ordinary checkpoint calls `name` [E, in, out] is
`name_blocks`, uint8 [E, out, G, 16] with two numbers to a byte, the even one below, and `name_scales`, uint8
[E, out, G], exponents of two plus 127.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

import ml_dtypes
import numpy as np

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.checkpoint.safetensors_file import Tensor
from jaxllm.models.errors import ModelError
from jaxllm.models.quantization.format import Format, MatrixTensor
from jaxllm.pallas_kernels.linear.weight_type import FP4, QuantizedMatrix, Values, WeightType

BLOCKS, SCALES = "_blocks", "_scales"
BLOCK, BIAS = 32, 127
LARGEST_SCALE = 252
"""With a larger scale, the largest value overflows float32 and bfloat16; 255 stands for NaN."""

KIND = WeightType(Values.CODES, BLOCK, code=FP4, scales="bfloat16")
_EXPERTS = (".experts.gate_up_proj", ".experts.down_proj")


@dataclass(frozen=True)
class Mxfp4Matrix(MatrixTensor):
    """All experts' matrices, above each other."""

    blocks: Tensor
    scales: Tensor

    def read(self) -> QuantizedMatrix:
        """See `MatrixTensor`."""
        rows, columns = self.shape
        codes, exponents = np.empty(self.blocks.size, np.uint8), np.empty(self.scales.size, np.uint8)
        self.blocks.read_bytes(codes, 0)
        self.scales.read_bytes(exponents, 0)
        if exponents.size and exponents.max() > LARGEST_SCALE:
            raise ModelError(
                f"{self.scales.path}: tensor {self.scales.name!r} has scale {exponents.max()}; the largest whose "
                f"numbers are finite is {LARGEST_SCALE}"
            )
        scales = np.ldexp(np.float32(1), exponents.astype(np.int32) - BIAS).astype(ml_dtypes.bfloat16)
        shape = (rows, columns // BLOCK)
        return QuantizedMatrix(self.shape, KIND, codes.reshape(rows, columns // 2), scales.reshape(shape))


@dataclass(frozen=True)
class Mxfp4(Format):
    """All experts but those whose names begin like one of `kept`, which may have `*` for a part."""

    kept: tuple[str, ...] = ()

    def weight_type(self, name: str) -> WeightType | None:
        """See `Format`."""
        is_kept = any(fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*") for pattern in self.kept)
        return KIND if name.endswith(_EXPERTS) and not is_kept else None

    def matrices(self, tensors: Mapping[str, Tensor], wanted: Collection[str]) -> Mapping[str, MatrixTensor]:
        """See `Format`."""
        found: dict[str, MatrixTensor] = {}
        for name in wanted:
            blocks, scales = tensors.get(name + BLOCKS), tensors.get(name + SCALES)
            if blocks is not None and name not in tensors:
                if scales is None:
                    raise ModelError(
                        f"{blocks.path}: tensor {blocks.name!r} has no scales: {name + SCALES!r} is missing"
                    )
                found[name] = _matrix(name, blocks, scales)
        return found


def read_format(section: ConfigFile) -> Mxfp4:
    """From the section of config.json. Raises `ModelError`, which names the field."""
    section.ignore("dequantize")
    return Mxfp4(tuple(section.texts("modules_to_not_convert")) if section.has("modules_to_not_convert") else ())


def _matrix(name: str, blocks: Tensor, scales: Tensor) -> Mxfp4Matrix:
    for tensor in (blocks, scales):
        if tensor.dtype != "U8" or type(tensor) is not Tensor or tensor.end - tensor.start != tensor.size:
            raise ModelError(f"{tensor.path}: tensor {tensor.name!r} of type {tensor.dtype} does not hold bytes (U8)")
    if len(blocks.shape) != 4 or blocks.shape[-1] != BLOCK // 2:
        raise ModelError(
            f"{blocks.path}: tensor {blocks.name!r} has shape {list(blocks.shape)}, expected blocks of "
            f"{BLOCK // 2} bytes, [experts, rows, blocks, {BLOCK // 2}]"
        )
    if scales.shape != blocks.shape[:-1]:
        raise ModelError(
            f"{scales.path}: tensor {scales.name!r} has shape {list(scales.shape)}, expected one for each block, "
            f"{list(blocks.shape[:-1])}"
        )
    experts, rows, count, _ = blocks.shape
    size = blocks.size + scales.size
    parts = (name + BLOCKS, name + SCALES)
    return Mxfp4Matrix(name, blocks.path, (experts * rows, count * BLOCK), KIND, size, parts, blocks, scales)
