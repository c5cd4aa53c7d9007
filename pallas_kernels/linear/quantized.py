"""Layouts of quantized matrices, and such products in plain XLA operations."""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jaxllm.pallas_kernels.linear.fused import NOTHING, Fused
from jaxllm.pallas_kernels.linear.weight import OperandLayout, Weight, WeightLayout
from jaxllm.pallas_kernels.linear.weight_type import Activations, WeightType
from jaxllm.pallas_kernels.linear.xla import RowMajor, product


class ArrayOf(NamedTuple):
    """How one array of a matrix lies, and its type."""

    layout: WeightLayout
    dtype: Any


@dataclass(frozen=True)
class QuantizedLayout(OperandLayout):
    """How the arrays of a quantized matrix [out, in] lie in memory, and how it is multiplied with from there."""

    kind: WeightType

    @classmethod
    @abstractmethod
    def reads(cls, shape: tuple[int, int], kind: WeightType) -> bool:
        """Whether there is such a layout of a matrix of `shape` (out, in)."""

    def arrays(self, input_scales: int = 1) -> Mapping[str, ArrayOf]:
        """Its arrays, by their names in `QuantizedMatrix`, whose shapes the layouts of the arrays take.

        A matrix that is made of several has so many `input_scales`.
        """
        kinds = array_shapes(self.shape, self.kind, input_scales)
        return {name: self.array(name, shape, dtype) for name, (shape, dtype) in kinds.items()}

    def array(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> ArrayOf:
        """How the array of a name lies, whose shape and type in `QuantizedMatrix` these are: as it is, unless told."""
        return ArrayOf(RowMajor(shape), dtype)

    def rows(self, weight: Weight, index: jax.Array) -> jax.Array:
        """Rows [T, in], float32; see `OperandLayout`."""
        weight = weight.own()
        found = self.ordered_rows(weight, index)
        return found if weight.order is None else found[:, jnp.argsort(weight.order)]

    @abstractmethod
    def ordered_rows(self, weight: Weight, index: jax.Array) -> jax.Array:
        """Rows [T, in], float32, of a matrix that is no stack, with columns in the order of the values."""


@dataclass(frozen=True)
class QuantizedRowMajor(QuantizedLayout):
    """The arrays of `QuantizedMatrix` as they are."""

    @classmethod
    def reads(cls, shape: tuple[int, int], kind: WeightType) -> bool:
        """All."""
        return True

    def ordered_rows(self, weight: Weight, index: jax.Array) -> jax.Array:
        """See `QuantizedLayout`."""

        def taken(array: jax.Array | None) -> jax.Array | None:
            return None if array is None else jnp.take(array, index, axis=0, mode="clip")

        values, scales = taken(weight.array), taken(weight.scales)
        assert values is not None
        return dequantize(values, scales, taken(weight.offsets), self.kind, self.shape[1])

    def multiply(
        self,
        x: jax.Array,
        weight: Weight,
        num_rows: jax.Array | int | None = None,
        fused: Fused = NOTHING,
        *,
        out_dtype: DTypeLike = jnp.float32,
        platform: str = "cpu",
    ) -> jax.Array:
        """See `linear`. XLA computes padding, too. The matrix may be a device's part of one."""
        weight = weight.own()
        x, kind = fused.prepare(x), jnp.dtype(out_dtype)
        out = _times(x, weight, self.kind, kind, platform).astype(kind)
        return out if fused.residual is None else out.astype(fused.residual.dtype) + fused.residual


def array_shapes(
    shape: tuple[int, ...], kind: WeightType, input_scales: int = 1
) -> dict[str, tuple[tuple[int, ...], np.dtype[Any]]]:
    """Shapes and types of the arrays of a `QuantizedMatrix` of `shape` (out, in), by their names there."""
    out_size, in_size = shape
    scales = kind.scales_shape((out_size, in_size)), np.dtype(jnp.dtype(kind.scales))
    found: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {
        "values": (kind.values_shape((out_size, in_size)), kind.array_type),
        "scales": scales,
    }
    if kind.has_offsets:
        found["offsets"] = scales
    if kind.is_reordered:
        found["order"] = (in_size,), np.dtype(np.int32)
    if kind.activations == Activations.STATIC:
        found["input_scale"] = (input_scales,), np.dtype(np.float32)
    return found


def _times(x: jax.Array, weight: Weight, kind: WeightType, out_dtype: jnp.dtype, platform: str) -> jax.Array:
    """`x` [T, in], prepared, times the matrix of `weight`, which is no stack: [T, out], float32 or `out_dtype`."""
    assert weight.scales is not None
    in_size = x.shape[1]
    if weight.order is not None:
        x = jnp.take(x, weight.order, axis=1)
    rows, row_scale = quantize_rows(x, kind, weight.input_scale)
    # The largest sums before their scales come would overflow float16.
    sums = jnp.dtype(jnp.float32) if out_dtype == jnp.float16 or row_scale is not None else out_dtype
    if kind.group is not None:
        matrix = dequantize(weight.array, weight.scales, weight.offsets, kind, in_size).astype(x.dtype)
        out = product(rows.astype(x.dtype), matrix, sums, platform)
    else:
        scales = weight.scales[:, 0].astype(jnp.float32)
        if rows.dtype == jnp.int8 and kind.code is None:
            out = product(rows, weight.array, jnp.dtype(jnp.int32), platform).astype(jnp.float32) * scales
        else:
            numbers = decode_values(weight.array, kind, in_size).astype(x.dtype)
            out = product(rows.astype(x.dtype), numbers, sums, platform).astype(jnp.float32) * scales
        if weight.offsets is not None:
            total = rows.astype(jnp.float32).sum(axis=1, keepdims=True)
            out = out + total * weight.offsets[:, 0].astype(jnp.float32)
    return out if row_scale is None else out.astype(jnp.float32) * row_scale


def quantize_rows(
    x: jax.Array, kind: WeightType, input_scale: jax.Array | None = None
) -> tuple[jax.Array, jax.Array | None]:
    """Rows [T, in] in the matrix's `row_type`, and by what they are to be multiplied: float32 [T, 1] or [].

    Where activations stay as they are, `x` and None.
    """
    if kind.activations == Activations.AS_THEY_ARE:
        return x, None
    wide = x.astype(jnp.float32)
    is_integer = kind.row_type == np.int8
    largest = 127.0 if is_integer else float(jnp.finfo(kind.row_type).max)
    if kind.activations == Activations.STATIC:
        assert input_scale is not None
        scale = input_scale.max()
    else:
        most = jnp.abs(wide).max(axis=1, keepdims=True)
        scale = jnp.where(most == 0, 1.0, most) / largest  # What is no number makes the row none.
    scaled = wide / scale
    scaled = jnp.clip(jnp.round(scaled), -128, 127) if is_integer else jnp.clip(scaled, -largest, largest)
    return scaled.astype(kind.row_type), scale


def dequantize(
    values: jax.Array, scales: jax.Array | None, offsets: jax.Array | None, kind: WeightType, in_size: int
) -> jax.Array:
    """The matrix [out, in], float32, whose columns are in the order of the values."""
    assert scales is not None

    def of_inputs(array: jax.Array) -> jax.Array:
        wide = array.astype(jnp.float32)
        return wide if kind.group is None else jnp.repeat(wide, min(kind.group, in_size), axis=1)[:, :in_size]

    matrix = decode_values(values, kind, in_size).astype(jnp.float32) * of_inputs(scales)
    return matrix if offsets is None else matrix + of_inputs(offsets)


def decode_values(values: jax.Array, kind: WeightType, in_size: int) -> jax.Array:
    """The numbers that values [out, in] stand for: themselves, or int8 or float32, as numbers of the code do."""
    if kind.code is None:
        return values
    codes = jnp.stack([values & np.uint8(15), values >> np.uint8(4)], axis=-1).reshape(len(values), -1)[:, :in_size]
    first = int(kind.code[0])
    if kind.code == tuple(float(first + place) for place in range(16)):
        return codes.astype(jnp.int8) + jnp.int8(first)
    # Choices between two are fused with what follows; looking numbers up in an array is not.
    numbers = [jnp.float32(number) for number in kind.code]
    for bit in range(4):
        is_set = (codes >> np.uint8(bit) & np.uint8(1)).astype(bool)
        numbers = [jnp.where(is_set, odd, even) for even, odd in zip(numbers[::2], numbers[1::2], strict=True)]
    return numbers[0]
