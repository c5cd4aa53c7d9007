"""Matrices in FP4 (E2M1): NVFP4, whose blocks of 16 have scales in float8 and matrices one more, and MXFP4.

As compressed-tensors has them in 'nvfp4-pack-quantized' and 'mxfp4-pack-quantized', and modelopt as 'NVFP4'. Weights
alone are in 4 bits here: activations stay as they are, which is closer to what was rounded. The two scales of NVFP4
become one in float32, rounded as those libraries round it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import ml_dtypes
import numpy as np

from jaxllm.models.quantization.module_tensors import FLOATS, ModuleTensors, Needed
from jaxllm.pallas_kernels.linear.weight_type import FP4, QuantizedMatrix, Values, WeightType

_ONE = ((), (1,), (1, 1))


@dataclass(frozen=True)
class Fp4Blocks:
    """Codes in tensor `codes`, two to a byte, the even one below; scales are multiplied or `divided` by the `whole`.

    Without a `whole`, scales are bytes, exponents of two. Tensors `ignored` are scales of activations.
    """

    codes: str
    whole: str | None = None
    divided: bool = False
    ignored: tuple[str, ...] = ()

    @property
    def kind(self) -> WeightType:
        """See `MatrixFormat`."""
        if self.whole is None:
            return WeightType(Values.CODES, 32, code=FP4, scales="bfloat16")
        return WeightType(Values.CODES, 16, code=FP4)

    def shape_of(self, tensors: ModuleTensors) -> tuple[int, int]:
        """See `MatrixFormat`."""
        rows, columns = tensors.two_sizes(self.codes)
        return rows, 2 * columns

    def tensors(self, shape: tuple[int, int]) -> Sequence[Needed]:
        """See `MatrixFormat`."""
        rows, columns = shape
        group = self.kind.group
        assert group is not None
        note = f"for groups of {group} in {shape}"
        scales = ("F8_E4M3",) if self.whole is not None else ("U8", "F8_E8M0")
        needed = [
            Needed((self.codes,), ((rows, columns // 2),), ("U8",)),
            Needed(("weight_scale",), ((rows, -(-columns // group)),), scales, note=note),
        ]
        if self.whole is not None:
            needed.append(Needed((self.whole,), _ONE, ("F32",)))
        return [*needed, *(Needed((ending,), _ONE, FLOATS, is_optional=True) for ending in self.ignored)]

    def read(self, tensors: ModuleTensors, shape: tuple[int, int]) -> QuantizedMatrix:
        """See `MatrixFormat`."""
        scales = tensors.read_scales("weight_scale")
        if self.whole is not None:
            whole = tensors.read_scales(self.whole).reshape(())
            if not whole > 0:
                raise tensors.error(self.whole, f"is {whole}; it must be positive")
            with np.errstate(over="ignore"):
                scales = scales / whole if self.divided else scales * whole
        elif scales.size and scales.max() > 2.0**125:
            raise tensors.error("weight_scale", "has scales so large that values are not finite")
        dtype = self.kind.scales
        if dtype == "bfloat16":
            return QuantizedMatrix(shape, self.kind, tensors.read(self.codes), scales.astype(ml_dtypes.bfloat16))
        if not np.isfinite(scales).all():
            raise tensors.error("weight_scale", "has scales that are not finite when multiplied by the matrix's scale")
        return QuantizedMatrix(shape, self.kind, tensors.read(self.codes), scales)


PACKED_NVFP4 = Fp4Blocks("weight_packed", "weight_global_scale", divided=True, ignored=("input_global_scale",))
PACKED_MXFP4 = Fp4Blocks("weight_packed")
MODELOPT_NVFP4 = Fp4Blocks("weight", "weight_scale_2", ignored=("input_scale",))
