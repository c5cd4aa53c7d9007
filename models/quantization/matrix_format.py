"""How a checkpoint keeps a quantized matrix."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import numpy.typing as npt

from jaxllm.models.quantization.module_tensors import ModuleTensors, Needed
from jaxllm.pallas_kernels.linear.weight_type import QuantizedMatrix, WeightType, pack_codes, unpack_codes


class MatrixFormat(Protocol):
    """A format of matrices [out, in]; equal formats give matrices of one type."""

    @property
    def kind(self) -> WeightType:
        """Type of the matrices once they are read."""
        ...

    def shape_of(self, tensors: ModuleTensors) -> tuple[int, int]:
        """(out, in) of the matrix that has these tensors. Raises `ModelError` where none can."""
        ...

    def tensors(self, shape: tuple[int, int]) -> Sequence[Needed]:
        """The parts of a matrix of `shape`. Raises `ModelError` where such a matrix cannot be."""
        ...

    def read(self, tensors: ModuleTensors, shape: tuple[int, int]) -> QuantizedMatrix:
        """The matrix, exactly. Raises `ModelError` for numbers that contradict one another or the format."""
        ...


def unpacked(words: npt.NDArray[np.int32], bits: int) -> npt.NDArray[np.uint8]:
    """Numbers [m, n * 32 / bits] of 4 or 8 bits in words int32 [m, n]; the lowest bits come first."""
    raw = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return raw
    return unpack_codes(raw, 2 * raw.shape[-1])


def values_of(
    numbers: npt.NDArray[np.uint8], bits: int, order: npt.NDArray[np.int32] | None = None
) -> npt.NDArray[np.generic]:
    """Values as `QuantizedMatrix` has them, of numbers [out, in] of 4 bits, or of 8 with 128 added."""
    if order is not None:
        numbers = numbers[:, order]
    if bits == 4:
        return pack_codes(numbers)
    return np.ascontiguousarray(numbers ^ np.uint8(128)).view(np.int8)


def order_of_groups(tensors: ModuleTensors, ending: str, group: int | None, in_size: int) -> npt.NDArray[np.int32]:
    """Inputs in order of their groups, int32 [in], from the number of each one's group.

    Raises `ModelError` unless every group has as many inputs as it would without an order.
    """
    numbers = tensors.read(ending)
    size = in_size if group is None else group
    count = -(-in_size // size)
    if numbers.size and not (numbers.min() >= 0 and numbers.max() < count):
        raise tensors.error(ending, f"has group indices outside 0 to {count - 1}")
    expected = np.bincount(np.arange(in_size) // size, minlength=count)
    if not np.array_equal(np.bincount(numbers, minlength=count), expected):
        raise tensors.error(ending, f"does not assign {size} inputs to every group")
    return np.argsort(numbers, kind="stable").astype(np.int32)
