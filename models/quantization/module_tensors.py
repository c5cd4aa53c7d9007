"""The tensors that a checkpoint has for one quantized matrix: checked by their headers, then read."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from jaxllm.models.checkpoint.safetensors_file import DTYPES, Tensor
from jaxllm.models.errors import ModelError

Array = npt.NDArray[Any]
Shape = tuple[int, ...]

FLOATS = tuple(DTYPES)
"""Types of scales."""
RAW_TYPES: Mapping[str, np.dtype[Any]] = {
    **DTYPES,
    "F8_E4M3": np.dtype(ml_dtypes.float8_e4m3fn),
    "F8_E5M2": np.dtype(ml_dtypes.float8_e5m2),
    "F8_E8M0": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "I32": np.dtype(np.int32),
    "I64": np.dtype(np.int64),
}
"""Types by safetensors' names, read as they are; exponents of two as bytes."""


@dataclass(frozen=True)
class Needed:
    """A tensor of a module, whose name ends with one of `endings`; shape and type are one of those given.

    `note` tells people what the shape follows from.
    """

    endings: Sequence[str]
    shapes: Sequence[Shape]
    types: Collection[str]
    is_optional: bool = False
    note: str = ""


@dataclass(frozen=True)
class ModuleTensors:
    """Tensors by what follows `module.` in their names."""

    module: str
    tensors: Mapping[str, Tensor]

    def check(self, needed: Sequence[Needed], *, only: bool = False) -> None:
        """Raise `ModelError`, which names the tensor, where one is missing, too many, or not as it is needed.

        With `only`, others are no business of this check.
        """
        known: set[str] = set()
        for each in needed:
            found = [ending for ending in each.endings if ending in self.tensors]
            known.update(found)
            if len(found) > 1:
                raise self.error(found[1], f"repeats {self.module + '.' + found[0]!r}")
            if found:
                self._check(self.tensors[found[0]], each)
            elif not each.is_optional:
                name = f"{self.module}.{each.endings[0]}"
                raise ModelError(f"quantized matrix {self.module!r}: tensor {name!r} is missing")
        for ending in self.tensors:
            if ending not in known and not only:
                raise self.error(ending, "does not belong to a matrix quantized this way")

    def _check(self, tensor: Tensor, needed: Needed) -> None:
        where = f"{tensor.path}: tensor {tensor.name!r}"
        if tensor.shape not in needed.shapes or tensor.dtype not in needed.types:
            shapes = " or ".join(str(list(shape)) for shape in dict.fromkeys(needed.shapes))
            raise ModelError(
                f"{where} is {list(tensor.shape)} of {tensor.dtype}; it must be {shapes} of "
                f"{' or '.join(needed.types)}{needed.note and f' ({needed.note})'}"
            )
        taken, wanted = tensor.end - tensor.start, math.prod(tensor.shape) * RAW_TYPES[tensor.dtype].itemsize
        if taken != wanted:
            raise ModelError(f"{where} takes {taken} bytes, expected {wanted}")

    def two_sizes(self, ending: str) -> tuple[int, int]:
        """Rows and columns of a tensor. Raises `ModelError` unless it is there, and a matrix."""
        tensor = self.tensors.get(ending)
        if tensor is None:
            raise ModelError(f"quantized matrix {self.module!r}: tensor {self.module + '.' + ending!r} is missing")
        if len(tensor.shape) != 2:
            raise self.error(ending, f"is {list(tensor.shape)}; it must be a matrix")
        return tensor.shape[0], tensor.shape[1]

    def ending_of(self, endings: Sequence[str]) -> str:
        """The one of these that is there; the first if none is."""
        return next((ending for ending in endings if ending in self.tensors), endings[0])

    def read(self, ending: str) -> Array:
        """A tensor as the file has it; it has been checked."""
        tensor = self.tensors[ending]
        values = np.empty(tensor.size, RAW_TYPES[tensor.dtype])
        tensor.read_bytes(values.view(np.uint8), 0)
        return values.reshape(tensor.shape)

    def read_scales(self, ending: str) -> npt.NDArray[np.float32]:
        """Scales in float32, which holds all types of theirs. Raises `ModelError` unless they are finite."""
        values = self.read(ending)
        if self.tensors[ending].dtype in ("F8_E8M0", "U8"):
            scales = np.where(values == 255, np.nan, np.ldexp(np.float32(1), values.astype(np.int32) - 127))
        else:
            with np.errstate(over="ignore"):
                scales = values.astype(np.float32)
        if not np.isfinite(scales).all():
            raise self.error(ending, "has scales that are not finite")
        return scales.astype(np.float32)

    def offsets(self, ending: str, steps: Array, scales: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """`steps` of the `scales`, which tensor `ending` has, float32. Raises `ModelError` unless they are finite."""
        with np.errstate(over="ignore"):
            offsets = steps.astype(np.float32) * scales
        if not np.isfinite(offsets).all():
            raise self.error(ending, "has scales so large that those times the zeros are not finite")
        return offsets

    def error(self, ending: str, problem: str) -> ModelError:
        """The error of a tensor."""
        tensor = self.tensors[ending]
        return ModelError(f"{tensor.path}: tensor {tensor.name!r} {problem}")
