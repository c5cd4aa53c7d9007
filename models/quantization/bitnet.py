"""Checkpoints of method 'bitnet': matrices of -1, 0 and 1 with one scale, and activations of 8 bits per token.

Formats: arXiv 2402.17764, and transformers' `BitNetQuantConfig`. Four numbers share a byte, the quarters of a matrix's
rows one after the other from the lowest bits on, each with 1 added. Where they are rounded while they are read
(`online`), and in some other checkpoints, matrices are ordinary ones.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from jaxllm.models.checkpoint.config_file import ConfigFile
from jaxllm.models.quantization.by_module import ByModule
from jaxllm.models.quantization.matrix_format import MatrixFormat
from jaxllm.models.quantization.module_names import is_in_block, is_named, read_names
from jaxllm.models.quantization.module_tensors import FLOATS, ModuleTensors, Needed
from jaxllm.pallas_kernels.linear.weight_type import INT4, Activations, QuantizedMatrix, Values, WeightType, pack_codes

PER_BYTE = 4
"""Numbers that share a byte."""
SMALLEST = 1e-5
"""The mean size of numbers that are rounded at least."""


@dataclass(frozen=True)
class TernaryMatrix:
    """A matrix whose scale is a tensor, or its `inverse` is; rounded while it is read if `is_online`."""

    is_inverse: bool = False
    is_online: bool = False

    kind: ClassVar[WeightType] = WeightType(Values.CODES, code=INT4, activations=Activations.PER_TOKEN)

    def shape_of(self, tensors: ModuleTensors) -> tuple[int, int]:
        """See `MatrixFormat`."""
        rows, columns = tensors.two_sizes("weight")
        return (rows * PER_BYTE if tensors.tensors["weight"].dtype == "U8" else rows), columns

    def tensors(self, shape: tuple[int, int]) -> Sequence[Needed]:
        """See `MatrixFormat`."""
        if self.is_online:
            return [Needed(("weight",), (shape,), FLOATS)]
        packed = (shape[0] // PER_BYTE, shape[1])
        shapes, types = (shape, packed) if shape[0] % PER_BYTE == 0 else (shape,), ("U8", *FLOATS)
        return [Needed(("weight",), shapes, types), Needed(("weight_scale",), ((1,), ()), FLOATS)]

    def read(self, tensors: ModuleTensors, shape: tuple[int, int]) -> QuantizedMatrix:
        """See `MatrixFormat`."""
        stored = tensors.read("weight")
        if self.is_online:
            wide = stored.astype(np.float32)
            scale = max(float(np.abs(wide).mean(dtype=np.float64)), SMALLEST)
            numbers = np.clip(np.round(wide / np.float32(scale)), -1, 1)
        else:
            numbers, scale = self._unpacked(tensors, stored), self._scale(tensors)
        codes = pack_codes((numbers.astype(np.int8) + 8).astype(np.uint8))
        return QuantizedMatrix(shape, self.kind, codes, np.full((shape[0], 1), scale, np.float32))

    def _unpacked(self, tensors: ModuleTensors, stored: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """The numbers [out, in]. Raises `ModelError` for others than there may be."""
        if stored.dtype == np.uint8:
            shifts = np.arange(PER_BYTE, dtype=np.uint8)[:, None, None] * np.uint8(2)
            parts = (stored.view(np.uint8) >> shifts & np.uint8(3)).astype(np.int8) - np.int8(1)
            numbers: npt.NDArray[np.generic] = parts.reshape(-1, stored.shape[1])
        else:
            numbers = stored.astype(np.float32)
        if not np.isin(numbers, (-1, 0, 1)).all():
            raise tensors.error("weight", "has other values than -1, 0 and 1")
        return numbers

    def _scale(self, tensors: ModuleTensors) -> float:
        scale = float(tensors.read_scales("weight_scale").reshape(()))
        if not self.is_inverse:
            return scale
        if scale == 0:
            raise tensors.error("weight_scale", "is 0, but numbers are divided by it")
        return 1.0 / scale


@dataclass(frozen=True)
class BitNet(ByModule):
    """Matrices of the layers, but for those that are `ignored`."""

    format: TernaryMatrix
    ignored: tuple[str, ...] = ()

    @property
    def reads_ordinary(self) -> bool:
        """See `ByModule`."""
        return self.format.is_online

    def format_of(self, module: str) -> MatrixFormat | None:
        """See `ByModule`."""
        return self.format if is_in_block(module) and not is_named(module, self.ignored) else None


def read_format(section: ConfigFile) -> BitNet:
    """From the section of config.json. Raises `ModelError`, which names the field."""
    kind, mode = section.text("linear_class", "bitlinear"), section.text("quantization_mode", "offline")
    if kind not in ("bitlinear", "autobitlinear"):
        raise section.wrong("linear_class", "'bitlinear' or 'autobitlinear'")
    if mode not in ("offline", "online"):
        raise section.wrong("quantization_mode", "'offline' or 'online'")
    if section.boolean("use_rms_norm", False):
        raise section.wrong("use_rms_norm", "false: norms before each product are not supported")
    section.ignore("rms_norm_eps")
    # Without a norm, transformers has two classes: one divides by the scale, and knows no other mode.
    is_auto = kind == "autobitlinear"
    form = TernaryMatrix(is_inverse=not is_auto, is_online=is_auto and mode == "online")
    return BitNet(form, read_names(section, "modules_to_not_convert"))
