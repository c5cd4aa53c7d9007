"""Matrices of integers packed into words of 32 bits, as compressed-tensors has them in 'pack-quantized'.

In every row of `weight_packed` int32 [out, in * bits / 32], the lowest bits of the first word are input 0's. Numbers
have half of their range added; zero points `weight_zero_point` int32 [out * bits / 32, G] are packed likewise, along
the outputs. `weight_g_idx` int32 [in] is the group of each input, where groups are not neighbours.
Format: https://github.com/vllm-project/compressed-tensors, compressors/pack_quantized.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from jaxllm.models.quantization.matrix_format import order_of_groups, unpacked, values_of
from jaxllm.models.quantization.module_tensors import FLOATS, ModuleTensors, Needed
from jaxllm.pallas_kernels.linear.weight_type import INT4, QuantizedMatrix, Values, WeightType

_SHAPE = Needed(("weight_shape",), ((2,),), ("I64", "I32"))


@dataclass(frozen=True)
class PackedWords:
    """Values of `bits` 4 or 8, with a scale for each `group` of inputs, or for all of an output."""

    bits: int
    group: int | None
    has_zeros: bool = False
    is_reordered: bool = False
    ignored: tuple[str, ...] = ()
    """Tensors of activations' scales that may be there; activations stay as they are."""

    @property
    def kind(self) -> WeightType:
        """See `MatrixFormat`."""
        values, code = (Values.CODES, INT4) if self.bits == 4 else (Values.INT8, None)
        return WeightType(values, self.group, self.has_zeros, code, is_reordered=self.is_reordered)

    def shape_of(self, tensors: ModuleTensors) -> tuple[int, int]:
        """See `MatrixFormat`."""
        rows, words = tensors.two_sizes("weight_packed")
        tensors.check([_SHAPE], only=True)
        out_size, in_size = (int(size) for size in tensors.read("weight_shape"))
        if (out_size, _words(in_size, self.bits)) != (rows, words):
            raise tensors.error(
                "weight_shape",
                f"is {[out_size, in_size]}, but the {self.bits} bits of each are [{rows}, {words}] words",
            )
        return out_size, in_size

    def tensors(self, shape: tuple[int, int]) -> Sequence[Needed]:
        """See `MatrixFormat`."""
        return list(self._tensors(shape))

    def _tensors(self, shape: tuple[int, int]) -> Iterator[Needed]:
        out_size, in_size = shape
        groups = self.kind.scales_shape(shape)[1]
        note = f"{self.bits} bits in {list(shape)}"
        yield Needed(("weight_packed",), ((out_size, _words(in_size, self.bits)),), ("I32",), note=note)
        scales = ((out_size, groups), (out_size,)) if groups == 1 else ((out_size, groups),)
        note = "one for each output" if self.group is None else f"groups of {self.group} in {list(shape)}"
        yield Needed(("weight_scale",), scales, FLOATS, note=note)
        yield _SHAPE
        if self.has_zeros:
            yield Needed(("weight_zero_point",), ((_words(out_size, self.bits), groups),), ("I32",), note=note)
        if self.is_reordered:
            yield Needed(("weight_g_idx",), ((in_size,),), ("I32", "I64"))
        for ending in self.ignored:
            yield Needed((ending,), ((), (1,), (1, 1)), ("I8", "I32", "I64", "F8_E4M3", *FLOATS), is_optional=True)

    def read(self, tensors: ModuleTensors, shape: tuple[int, int]) -> QuantizedMatrix:
        """See `MatrixFormat`."""
        scales = tensors.read_scales("weight_scale").reshape(self.kind.scales_shape(shape))
        offsets = None
        if self.has_zeros:
            zeros = unpacked(tensors.read("weight_zero_point").T, self.bits)[:, : shape[0]].T
            offsets = tensors.offsets("weight_scale", 2 ** (self.bits - 1) - zeros.astype(np.int32), scales)
        order = None
        if self.is_reordered:
            order = order_of_groups(tensors, "weight_g_idx", self.group, shape[1])
        packed = tensors.read("weight_packed")
        if self.bits == 4 and order is None and shape[1] % 2 == 0:
            # Neighbours share a byte in both.
            values: npt.NDArray[np.generic] = packed.view(np.uint8)[:, : shape[1] // 2]
        else:
            values = values_of(unpacked(packed, self.bits)[:, : shape[1]], self.bits, order)
        return QuantizedMatrix(shape, self.kind, values, scales, offsets, order)


def _words(numbers: int, bits: int) -> int:
    return -(-numbers * bits // 32)
