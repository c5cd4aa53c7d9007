"""Matrices with a number to an element, int8 or float8, besides their scales.

As compressed-tensors has them in 'int-quantized', 'float-quantized' and 'naive-quantized'
(https://github.com/vllm-project/compressed-tensors), and checkpoints of method 'fp8': per tensor, or in blocks as
DeepSeek-V3 (arXiv 2412.19437, section 3.3).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from jaxllm.models.checkpoint.config_file import MOST
from jaxllm.models.errors import ModelError
from jaxllm.models.quantization.module_tensors import FLOATS, ModuleTensors, Needed, Shape
from jaxllm.pallas_kernels.linear.weight_type import Activations, QuantizedMatrix, Values, WeightType

_TYPES = {Values.INT8: "I8", Values.FLOAT8_E4M3: "F8_E4M3", Values.FLOAT8_E5M2: "F8_E5M2"}

Sharing = Literal["tensor", "channel", "group", "block"]
"""The part that shares a scale: all elements, those of an output, a group of inputs of an output, or a rectangle."""


@dataclass(frozen=True)
class ScaledValues:
    """A format of these `values`with shared scales; `block` are the rows and columns of a group or a block.

    What follows the module's name in that of a tensor is one of `scale`, or of `input_scale`.
    """

    values: Values
    sharing: Sharing
    block: tuple[int, int] | None = None
    has_zeros: bool = False
    activations: Activations = Activations.AS_THEY_ARE
    scale: Sequence[str] = ("weight_scale",)
    input_scale: Sequence[str] = ("input_scale",)
    scale_types: tuple[str, ...] = FLOATS
    ignored: tuple[str, ...] = ()
    """Tensors of activations' scales that may be there, where activations stay as they are."""

    @property
    def kind(self) -> WeightType:
        """See `MatrixFormat`."""
        group = None if self.block is None else self.block[1]
        return WeightType(self.values, group, self.has_zeros, activations=self.activations)

    def shape_of(self, tensors: ModuleTensors) -> tuple[int, int]:
        """See `MatrixFormat`."""
        return tensors.two_sizes("weight")

    def tensors(self, shape: tuple[int, int]) -> Sequence[Needed]:
        """See `MatrixFormat`."""
        return list(self._tensors(shape))

    def _tensors(self, shape: tuple[int, int]) -> Iterator[Needed]:
        scales, note = self._scales_shapes(shape)
        yield Needed(("weight",), (shape,), (_TYPES[self.values],))
        yield Needed(self.scale, scales, self.scale_types, note=note)
        if self.has_zeros:
            yield Needed(("weight_zero_point",), scales, ("I8", *FLOATS), note=note)
        if self.activations == Activations.STATIC:
            yield Needed(self.input_scale, ((), (1,), (1, 1)), FLOATS)
        for ending in self.ignored:
            yield Needed((ending,), ((), (1,), (1, 1)), ("I8", "I32", "I64", "F8_E4M3", *FLOATS), is_optional=True)

    def _scales_shapes(self, shape: tuple[int, int]) -> tuple[Sequence[Shape], str]:
        """Shapes that scales may have, and why."""
        out_size, in_size = shape
        if self.sharing == "tensor":
            return ((), (1,), (1, 1)), "one for the tensor"
        if self.block is None:
            return ((out_size, 1), (out_size,)), "one for each output"
        rows, columns = self.block
        wanted = (-(-out_size // rows), -(-in_size // columns))
        return (wanted,), f"for {'blocks' if self.sharing == 'block' else 'groups'} of {rows} x {columns} in {shape}"

    def read(self, tensors: ModuleTensors, shape: tuple[int, int]) -> QuantizedMatrix:
        """See `MatrixFormat`."""
        values = tensors.read("weight")
        if self.values != Values.INT8 and not np.isfinite(values).all():
            raise tensors.error("weight", "has values that are not finite")
        scales = self._per_output(tensors.read_scales(tensors.ending_of(self.scale)), shape)
        offsets = input_scale = None
        if self.has_zeros:
            zeros = self._per_output(tensors.read("weight_zero_point").astype(np.float32), shape)
            offsets = tensors.offsets(tensors.ending_of(self.scale), -zeros, scales)
        if self.activations == Activations.STATIC:
            input_scale = read_input_scale(tensors, tensors.ending_of(self.input_scale))
        return QuantizedMatrix(shape, self.kind, values, scales, offsets, input_scale=input_scale)

    def _per_output(self, scales: npt.NDArray[np.float32], shape: tuple[int, int]) -> npt.NDArray[np.float32]:
        """Scales [out, G] of what the tensor has."""
        if self.sharing == "tensor":
            return np.full((shape[0], 1), scales.reshape(()))
        if self.sharing == "block" and self.block is not None:
            return np.repeat(scales, min(self.block[0], shape[0]), axis=0)[: shape[0]]
        return scales.reshape(shape[0], -1)


def read_input_scale(tensors: ModuleTensors, ending: str) -> npt.NDArray[np.float32]:
    """The divisor of activations, float32 []. Raises `ModelError` unless it is positive."""
    scale = tensors.read_scales(ending).reshape(())
    if scale <= 0:
        raise tensors.error(ending, f"is {scale}; the scale of activations must be positive")
    return scale


def whole_blocks(section: str, block: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of a block. Raises `ModelError`, which begins with `section`, for sizes that cannot be."""
    most = MOST["group_size"]
    if len(block) != 2 or min(block) < 1 or max(block) > most:
        raise ModelError(f"{section} must be two positive integers up to {most}, found {str(list(block))[:80]}")
    return block[0], block[1]
