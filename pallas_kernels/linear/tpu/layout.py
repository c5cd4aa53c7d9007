"""How the kernel for TPUs wants quantized matrices. Imports no compiler."""

from dataclasses import dataclass
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
from jax.typing import DTypeLike

from jaxllm.pallas_kernels.linear.fused import NOTHING, Fused
from jaxllm.pallas_kernels.linear.quantized import ArrayOf, QuantizedLayout, quantize_rows
from jaxllm.pallas_kernels.linear.tpu.codes import code_bias, decode, levels, levels_on_device
from jaxllm.pallas_kernels.linear.weight import Weight
from jaxllm.pallas_kernels.linear.weight_type import INT4, Activations, WeightType
from jaxllm.pallas_kernels.linear.xla import RowMajor
from jaxllm.pallas_kernels.tpu_common.constants import LANES

_DEPTH = 16
"""A divisor of the inputs and of groups: rows of a register of bfloat16."""
_WIDEST = 4096
"""Outputs of a unit that is one strip, though it has no whole registers."""


@dataclass(frozen=True)
class StripArray(RowMajor):
    """A tensor [out, N] as strips of outputs, [S, N, C]: element (o, n) is at [o // C, n, o % C].

    Codes are unpacked to integers of four bits, see `codes`; their tensor is [out, N / 2]. What each of `parts` devices
    has of N, if that is not 1, ends with zeros up to whole registers, as scales of 90 groups would: XLA would lay them
    in another order so as not to pad them, and copy those of all layers for the kernel.
    """

    columns: int
    code: tuple[float, ...] | None = None
    parts: int = 1

    is_packed: ClassVar[bool] = True
    in_stack: ClassVar[bool] = True

    @property
    def rows_per_entry(self) -> int:
        """C."""
        return self.columns

    @property
    def array_shape(self) -> tuple[int, ...]:
        """(S, N, C)."""
        out_size, width = self.shape
        return out_size // self.columns, self._width if width == 1 else self.parts * self._padded, self.columns

    @property
    def _width(self) -> int:
        return self.shape[1] * (1 if self.code is None else 2)

    @property
    def _padded(self) -> int:
        """A device's part of N."""
        return -(-self._width // self.parts // _DEPTH) * _DEPTH

    def pack(self, tensor: jax.Array) -> jax.Array:
        """On the device."""
        numbers = tensor if self.code is None else levels_on_device(tensor, self.code)
        strips = numbers.reshape(*numbers.shape[:-2], -1, self.columns, self._width).swapaxes(-1, -2)
        if strips.shape[-3:] == self.array_shape:
            return strips
        parts = strips.reshape(*strips.shape[:-2], self.parts, -1, self.columns)
        padding = [(0, 0)] * (parts.ndim - 2) + [(0, self._padded - parts.shape[-2]), (0, 0)]
        return jnp.pad(parts, padding).reshape(*numbers.shape[:-2], *self.array_shape)

    def pack_into(self, array: np.ndarray, tensor: np.ndarray) -> None:
        """Strip by strip."""
        for strip, start in zip(array, range(0, len(tensor), self.columns), strict=True):
            own = tensor[start : start + self.columns]
            numbers = (own if self.code is None else levels(own.view(np.uint8), self.code)).T.astype(array.dtype)
            if numbers.shape == strip.shape:
                strip[...] = numbers
                continue
            to, parts = (each.reshape(self.parts, -1, self.columns) for each in (strip, numbers))
            to[:, : parts.shape[1]], to[:, parts.shape[1] :] = parts, 0


@dataclass(frozen=True)
class Strips(QuantizedLayout):
    """Values [S, in, C] and scales and offsets [S, G, C] of strips of C outputs, where they lie in a stack.

    Inputs first: so a strip enters the matrix units nearly twice as fast. Where groups have a matrix each, or devices
    a part, these are `units` of whole strips; `across` is the number of devices that share the inputs.
    """

    on_each_device: ClassVar[bool] = True

    units: int = 1
    across: int = 1

    @classmethod
    def reads(cls, shape: tuple[int, int], kind: WeightType, units: int = 1, across: int = 1) -> bool:
        """Whole strips, or units that are one, and whole groups of whole registers; inputs on `across` devices.

        These must not depend on each other's inputs, as the scale of a token does.
        """
        if across > 1 and (kind.is_reordered or kind.activations == Activations.PER_TOKEN):
            return False
        if kind.activations != Activations.AS_THEY_ARE and kind.code not in (None, INT4):
            return False
        out_size, in_size = shape[0] // units, shape[1] // across
        group = in_size if kind.group is None else kind.group
        is_even = shape == (out_size * units, in_size * across) and in_size % group == group % _DEPTH == 0
        return is_even and (out_size % LANES == 0 or out_size <= _WIDEST)

    @property
    def columns(self) -> int:
        """C: two registers wide where strips are whole then, as the matrix units of v6e and TPU7x; or all of a unit."""
        unit = self.shape[0] // self.units
        wide = (2, 5, 3, 1) if unit > _WIDEST else (2, 1)
        return next((count * LANES for count in wide if unit % (count * LANES) == 0), unit)

    def array(self, name: str, shape: tuple[int, ...], dtype: np.dtype[Any]) -> ArrayOf:
        """See `QuantizedLayout`."""
        if name == "values":
            code = self.kind.code
            return ArrayOf(StripArray(shape, self.columns, code), dtype if code is None else ml_dtypes.int4)
        if name not in ("scales", "offsets"):
            return super().array(name, shape, dtype)
        # A register holds neither float16 nor scales of 8 bits.
        exact = np.float32 if dtype in (np.float16, np.float32) else ml_dtypes.bfloat16
        parts = 1 if self.kind.group is None else self.across
        return ArrayOf(StripArray(shape, self.columns, None, parts), exact)

    def ordered_rows(self, weight: Weight, index: jax.Array) -> jax.Array:
        """See `QuantizedLayout`; gathers what lies C elements apart."""
        kind = self.kind
        index = jnp.clip(index, 0, self.shape[0] - 1)
        place = index // self.columns, slice(None), index % self.columns

        def taken(array: jax.Array | None) -> jax.Array | None:
            if array is None:
                return None
            own = array[place].astype(jnp.float32)
            if self.kind.group is None:
                return own
            parts = own.reshape(len(own), self.across, -1)
            groups = self.shape[1] // self.kind.group // self.across
            return jnp.repeat(parts[:, :, :groups].reshape(len(own), -1), self.kind.group, axis=1)

        values, scales, offsets = weight.array[place], taken(weight.scales), taken(weight.offsets)
        assert scales is not None
        wide = jnp.dtype(jnp.float32)
        numbers = values.astype(wide) if kind.code is None else decode(values, kind.code, wide) + code_bias(kind.code)
        found = numbers * scales
        return found if offsets is None else found + offsets

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
        """See `linear`. Padding is computed, too. The matrix may be a device's part of one."""
        from jaxllm.pallas_kernels.linear.tpu.matmul import quantized_matmul

        x = fused.prepare(x)
        if weight.order is not None:
            order = weight.order if weight.layer is None else weight.order[weight.layer]
            x = jnp.take(x, order, axis=1)
        input_scale = weight.input_scale
        if input_scale is not None and weight.layer is not None:
            input_scale = input_scale[weight.layer]
        rows, scale = quantize_rows(x, self.kind, input_scale)
        row_scales = None if scale is None else jnp.broadcast_to(scale, (len(x), 1))
        # Other types of rows, float16 that is, are not multiplied as they are.
        rows = rows.astype(jnp.float32) if rows.dtype == jnp.float16 else rows
        out = quantized_matmul(rows, weight, self.kind, row_scales=row_scales, out_dtype=out_dtype)
        return out if fused.residual is None else out.astype(fused.residual.dtype) + fused.residual
