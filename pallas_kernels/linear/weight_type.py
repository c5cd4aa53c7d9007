"""Quantized matrices: what their numbers mean, in whatever layout they lie.

Element (o, i) of a matrix [out, in] is `value * scale + offset`. The value is what is kept, or the number that a code
of four bits stands for; scale and offset are those of output o and of the group of inputs that i belongs to.
"""

from dataclasses import dataclass
from enum import StrEnum

import ml_dtypes
import numpy as np
import numpy.typing as npt


class Values(StrEnum):
    """How the values of a matrix are kept."""

    INT8 = "int8"
    FLOAT8_E4M3 = "float8_e4m3fn"
    FLOAT8_E5M2 = "float8_e5m2"
    CODES = "codes"
    """Numbers from 0 to 15, two to a byte of uint8: element 2 i in the lower half, 2 i + 1 in the upper one."""


class Activations(StrEnum):
    """The type in which activations are multiplied with the matrix."""

    AS_THEY_ARE = "as they are"
    PER_TOKEN = "per token"
    """Each row in `WeightType.row_type` (int8 or a float8), with a scale of its own from its largest element."""
    STATIC = "static"
    """Likewise, with one scale for all rows, which the checkpoint has."""


INT4 = tuple(float(value) for value in range(-8, 8))
"""The code of signed numbers of four bits, kept with 8 added."""
UINT4 = tuple(float(value) for value in range(16))
"""The code of numbers that are what they seem; an offset moves them."""
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
"""E2M1, as MXFP4 and NVFP4 have it (OCP Microscaling Formats 1.0, section 5.3.3)."""


@dataclass(frozen=True)
class WeightType:
    """The type of a matrix [out, in], beyond its shape. An impossible combination is a `ValueError`."""

    values: Values
    group: int | None = None
    """Neighbouring inputs that share a scale; None: all inputs of an output do."""
    has_offsets: bool = False
    """Whether there is a number to add for every scale."""
    code: tuple[float, ...] | None = None
    """The number that each of 16 codes stands for."""
    scales: str = "float32"
    """NumPy's name of the type of scales and offsets: the narrowest that holds them exactly."""
    activations: Activations = Activations.AS_THEY_ARE
    is_reordered: bool = False
    """Whether column i is for input `order[i]`, so that inputs of a group lie side by side."""

    def __post_init__(self) -> None:
        if (self.code is not None) != (self.values == Values.CODES):
            raise ValueError(f"{self.values} with code {self.code}: codes need a table, and no other type has one")
        if self.code is not None and len(self.code) != 16:
            raise ValueError(f"a table of {len(self.code)} numbers: 4-bit codes have 16")
        if self.group is not None and self.group < 1:
            raise ValueError(f"groups of {self.group} inputs")
        is_whole = all(number == int(number) for number in self.code or ())
        if self.activations != Activations.AS_THEY_ARE and not is_whole:
            raise ValueError("int8 activations require integer weights, but the code has other values")

    @property
    def array_type(self) -> np.dtype[np.generic]:
        """NumPy's type of the array of values."""
        if self.values == Values.CODES:
            return np.dtype(np.uint8)
        return np.dtype(np.int8) if self.values == Values.INT8 else np.dtype(getattr(ml_dtypes, self.values.value))

    @property
    def row_type(self) -> np.dtype[np.generic]:
        """NumPy's type of rounded activations: int8 alongside codes, else that of the values."""
        return np.dtype(np.int8) if self.values == Values.CODES else self.array_type

    def values_shape(self, shape: tuple[int, int]) -> tuple[int, int]:
        """Shape of the array of values of a matrix of `shape` (out, in)."""
        out_size, in_size = shape
        return out_size, -(-in_size // 2) if self.values == Values.CODES else in_size

    def scales_shape(self, shape: tuple[int, int]) -> tuple[int, int]:
        """Shape of its scales, and of its offsets: (out, G)."""
        out_size, in_size = shape
        return out_size, 1 if self.group is None else -(-in_size // self.group)

    def split_problem(self, in_size: int, devices: int) -> str | None:
        """Why devices cannot each multiply with a part of so many inputs, by itself; None where they can."""
        if self.is_reordered:
            return "whose inputs are in another order"
        if self.activations == Activations.PER_TOKEN:
            return "whose activations have a scale for each token"
        if self.group is not None and in_size // devices % self.group:
            return f"in groups of {self.group} of {in_size} inputs"
        return None


@dataclass(frozen=True)
class QuantizedMatrix:
    """A matrix [out, in] on the host, rows and columns in the order of the checkpoint's format."""

    shape: tuple[int, int]
    kind: WeightType
    values: npt.NDArray[np.generic]
    """[out, in], or codes [out, in / 2]."""
    scales: npt.NDArray[np.generic]
    """[out, G]."""
    offsets: npt.NDArray[np.generic] | None = None
    """[out, G]."""
    order: npt.NDArray[np.int32] | None = None
    """int32 [in], a permutation: column i of the values is for input `order[i]`."""
    input_scale: npt.NDArray[np.float32] | None = None
    """float32 []: what activations are divided by, where that is static."""

    def dequantized(self, dtype: npt.DTypeLike = np.float64) -> npt.NDArray[np.floating]:
        """The matrix [out, in] whose columns are in the order of the inputs; the oracle of products."""
        in_size = self.shape[1]
        if self.kind.code is None:
            numbers = self.values.astype(dtype)
        else:
            numbers = np.asarray(self.kind.code, dtype)[unpack_codes(self.values.view(np.uint8), in_size)]
        group = in_size if self.kind.group is None else self.kind.group
        of_input = np.arange(in_size) // group
        matrix = numbers * self.scales.astype(dtype)[:, of_input]
        if self.offsets is not None:
            matrix = matrix + self.offsets.astype(dtype)[:, of_input]
        if self.order is None:
            return matrix
        restored = np.empty_like(matrix)
        restored[:, self.order] = matrix
        return restored


def pack_codes(codes: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
    """Codes [..., in] of 0 to 15 as bytes [..., in / 2]; an odd one at the end gets a 0 alongside it."""
    if codes.shape[-1] % 2:
        codes = np.concatenate([codes, np.zeros((*codes.shape[:-1], 1), np.uint8)], axis=-1)
    return codes[..., ::2] | codes[..., 1::2] << np.uint8(4)


def unpack_codes(packed: npt.NDArray[np.uint8], in_size: int) -> npt.NDArray[np.uint8]:
    """The codes [out, in] of bytes [out, in / 2]."""
    codes = np.stack([packed & np.uint8(15), packed >> np.uint8(4)], axis=-1)
    return codes.reshape(len(packed), -1)[:, :in_size]
