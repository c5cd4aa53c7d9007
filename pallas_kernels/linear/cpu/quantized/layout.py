"""How quantized matrices lie in memory for the kernels of CPUs."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jaxllm.pallas_kernels.cpu_common.processor import host_processor
from jaxllm.pallas_kernels.linear.cpu import BLOCK
from jaxllm.pallas_kernels.linear.cpu.packed import Packed
from jaxllm.pallas_kernels.linear.cpu.quantized.call import LARGEST_SEGMENT, Operand, quantized_matmul
from jaxllm.pallas_kernels.linear.cpu.quantized.form import Form, form_of
from jaxllm.pallas_kernels.linear.fused import NOTHING, Fused
from jaxllm.pallas_kernels.linear.quantized import ArrayOf, QuantizedLayout, dequantize
from jaxllm.pallas_kernels.linear.weight import Weight, WeightLayout
from jaxllm.pallas_kernels.linear.weight_type import WeightType

LARGEST_DEPTH = 2**16
"""Inputs whose products of bytes, and those of the bytes of activations with 128, are less than 2 ** 31 together."""


@dataclass(frozen=True)
class PackedFours(WeightLayout):
    """Blocks of 16 outputs, [B, n / 4, 64]: byte (o, i) of [out, n] is at [o // 16, i // 4, 4 (o % 16) + i % 4].

    Four bytes of an output are what a lane of `vpdpbusd` adds up.
    """

    is_packed: ClassVar[bool] = True
    in_stack: ClassVar[bool] = True
    rows_per_entry: ClassVar[int] = BLOCK

    @property
    def array_shape(self) -> tuple[int, ...]:
        """(B, n / 4, 64)."""
        out_size, size = self.shape
        return -(-out_size // BLOCK), size // 4, 4 * BLOCK

    def pack(self, tensor: jax.Array) -> jax.Array:
        """On the device."""
        blocks, fours, _ = self.array_shape
        padding = [(0, 0)] * (tensor.ndim - 2) + [(0, blocks * BLOCK - tensor.shape[-2]), (0, 0)]
        split = jnp.pad(tensor, padding).reshape(*tensor.shape[:-2], blocks, BLOCK, fours, 4)
        return split.swapaxes(-2, -3).reshape(*tensor.shape[:-2], *self.array_shape)

    def pack_into(self, array: np.ndarray, tensor: np.ndarray) -> None:
        """Four bytes at a time."""
        words = np.ascontiguousarray(tensor).view(np.uint32)
        to = array.view(np.uint32)
        whole, rest = divmod(len(words), BLOCK)
        np.copyto(to[:whole], words[: whole * BLOCK].reshape(whole, BLOCK, words.shape[1]).transpose(0, 2, 1))
        if rest:
            to[whole, :, :rest] = words[whole * BLOCK :].T
            to[whole, :, rest:] = 0

    def rows(self, weight: Weight, index: jax.Array) -> jax.Array:
        """Gather what lies 64 bytes apart."""
        return self.taken(weight.own().array, index)

    def taken(self, array: jax.Array, index: jax.Array) -> jax.Array:
        """Rows [T, n] of an array."""
        index = jnp.clip(index, 0, self.shape[0] - 1)
        split = array.reshape(*array.shape[:-1], BLOCK, 4)
        return split[index // BLOCK, :, index % BLOCK].reshape(len(index), -1)

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
        """Bytes alone are no matrix."""
        raise NotImplementedError("cannot multiply bytes without scales: use the layout of the whole matrix")


@dataclass(frozen=True)
class QuantizedPacked(QuantizedLayout):
    """Arrays of `QuantizedMatrix` in blocks of 16 outputs."""

    @classmethod
    def reads(cls, shape: tuple[int, int], kind: WeightType) -> bool:
        """Rows of whole vectors, groups of such, and types that this processor has a kernel for."""
        form, in_size = form_of(kind, host_processor()), shape[1]
        if form is None or in_size % BLOCK or in_size > LARGEST_DEPTH:
            return False
        return kind.group is None or (kind.group % BLOCK == 0 and kind.group <= LARGEST_SEGMENT)

    @property
    def form(self) -> Form:
        """Form of its kernel."""
        found = form_of(self.kind, host_processor())
        assert found is not None
        return found

    def array(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> ArrayOf:
        """See `QuantizedLayout`."""
        if name not in ("values", "scales", "offsets"):
            return super().array(name, shape, dtype)
        layout = PackedFours if name == "values" and self.form.takes_fours else Packed
        return ArrayOf(layout(shape), dtype)

    def ordered_rows(self, weight: Weight, index: jax.Array) -> jax.Array:
        """See `QuantizedLayout`."""
        index = jnp.clip(index, 0, self.shape[0] - 1)

        def taken(array: jax.Array | None) -> jax.Array | None:
            return None if array is None else array[index // BLOCK, :, index % BLOCK]

        if self.form.takes_fours:
            values = self.arrays()["values"].layout
            assert isinstance(values, PackedFours)
            found = values.taken(weight.array, index)
        else:
            found = weight.array[index // BLOCK, :, index % BLOCK]
        return dequantize(found, taken(weight.scales), taken(weight.offsets), self.kind, self.shape[1])

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
        """See `linear`. Padding is not computed, and a row's result depends on nothing but the row and the weights."""
        out_size, residual = self.shape[0], fused.residual
        is_whole = out_size % BLOCK == 0
        added = residual.astype(jnp.float32) if is_whole and residual is not None else None
        sizes = jnp.asarray(len(x) if num_rows is None else num_rows, jnp.int32).reshape(1)
        out = self.grouped(x, weight, sizes, replace(fused, residual=added))
        if not is_whole:
            out = out[:, :out_size] if residual is None else out[:, :out_size] + residual
        return out.astype(out_dtype)

    def grouped(self, x: jax.Array, weight: Weight, sizes: jax.Array, fused: Fused = NOTHING) -> jax.Array:
        """`x` [T, in] times the matrices [G * out, in], `sizes` [G] rows each, which come one after the other.

        Returns float32 [T, out], each matrix padded to whole blocks; rows that no matrix has are zero.
        """
        form, x = self.form.reading(x.dtype.name), x.astype(jnp.float32)
        order = weight.order
        if order is not None:
            order = order if weight.layer is None else order[weight.layer]
            x, fused = jnp.take(fused.prepare(x), order, axis=1), Fused(residual=fused.residual)
        static = weight.input_scale
        if static is not None:
            static = (static if weight.layer is None else static[weight.layer]).max()
        assert weight.scales is not None
        operand = Operand(self.kind, form, weight.array, weight.scales, weight.offsets, weight.layer)
        return quantized_matmul(x, operand, sizes, fused, static)
