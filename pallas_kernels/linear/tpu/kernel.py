"""The kernel: strips of a quantized matrix pass through VMEM, and are widened there on the way to the matrix units.

    for each block of strips:
        for each window of rows:              the pipeline fetches the next strips and window meanwhile
            for each strip: one product over the whole depth, or one for each group

A strip is [in, C], inputs first: so it enters the matrix units nearly twice as fast as with outputs first.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jaxllm.pallas_kernels.float8 import bfloat16_pairs
from jaxllm.pallas_kernels.linear.tpu.codes import code_bias, decode

Ref = Any
"""A reference to memory, which Pallas does not type."""

_LOW = 16
"""Factor of the lower part of a number: half of the eight bits of bfloat16."""


@dataclass(frozen=True)
class Body:
    """The static facts that the kernel is compiled for.

    Attributes:
        code: of codes, see `WeightType`.
        group: inputs of a group; None where a strip has one scale for each output.
        scales_sums: whether scales of groups multiply the sums of each group, which is exact, or the weights.
        wide: the type in which rows and weights are multiplied.
        block: rows that are multiplied together.
        by_bits: whether float8 is widened by `bfloat16_pairs`; rows have `even_columns_first` then.
        split_float8: whether rows are multiplied in two parts, see `split_float8`.
    """

    code: tuple[float, ...] | None
    group: int | None
    scales_sums: bool
    wide: str
    block: int
    by_bits: bool = False
    split_float8: bool = False

    def product(
        self,
        x: jax.Array,
        values: jax.Array,
        scales: jax.Array,
        sums: jax.Array | None,
        offsets: jax.Array | None,
        part_scales: jax.Array | None = None,
    ) -> jax.Array:
        """`x` [B, in] times a strip [in, C] with scales and offsets [G, C], maybe padded, in float32.

        `sums` [B, G] of each group's inputs are needed where there are offsets, or codes that want some. With
        `part_scales` [2 B, 1], `x` [2 B, in] is that of `split_float8`.
        """
        groups = 1 if self.group is None else len(values) // self.group
        scales, offsets = scales[:groups], None if offsets is None else offsets[:groups]
        out = self._scaled(x, values, scales)
        if part_scales is not None:
            out *= part_scales
            out = out[: len(out) // 2] + out[len(out) // 2 :]
        if sums is None:
            return out
        shift = code_bias(self.code) * scales.astype(jnp.float32)
        return out + _dot(sums, shift if offsets is None else shift + offsets.astype(jnp.float32))

    def _scaled(self, x: jax.Array, values: jax.Array, scales: jax.Array) -> jax.Array:
        if self.group is None:
            return _dot(x, self._widened(values)) * scales.astype(jnp.float32)
        if self.scales_sums:
            out = jnp.zeros((len(x), values.shape[1]), jnp.float32)
            for number in range(len(scales)):
                own = slice(number * self.group, (number + 1) * self.group)
                sums = _dot(x[:, own], self._widened(values[own]))
                out += sums * scales[number : number + 1].astype(jnp.float32)
            return out
        weights = self._widened(values)
        groups = weights.reshape(len(scales), self.group, -1) * scales.astype(weights.dtype)[:, None, :]
        return _dot(x, groups.reshape(weights.shape))

    def _widened(self, values: jax.Array) -> jax.Array:
        """Numbers for the matrix units."""
        wide = jnp.dtype(self.wide)
        if self.by_bits:
            return self._widen_by_bits(values)
        return decode(values, self.code, wide) if self.code is not None else values.astype(wide)

    def _widen_by_bits(self, values: jax.Array) -> jax.Array:
        """Floats of 8 bits [in, C] as bfloat16, with `even_columns_first`. A word holds four rows of a column."""
        words, name = pltpu.bitcast(values, jnp.uint32), values.dtype.name
        even, odd = (pltpu.bitcast(bfloat16_pairs(words, which, name), jnp.bfloat16) for which in (0, 1))
        half = len(even) if self.group is None else self.group // 2
        parts = [rows[first : first + half] for first in range(0, len(even), half) for rows in (even, odd)]
        return jnp.concatenate(parts, axis=0)


def even_columns_first(x: jax.Array, group: int | None) -> jax.Array:
    """Rows [T, in] with the columns 0, 2, 4, ... of each group, or of all, before its columns 1, 3, 5, ..."""
    size = x.shape[1] if group is None else group
    return x.reshape(len(x), -1, size // 2, 2).swapaxes(2, 3).reshape(x.shape)


def split_float8(x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Rows [T, in] of bfloat16 as twice as many in float8, [2 T, in], and their scales [2 T, 1] in float32.

    Row t is `scales[t] * parts[t] + scales[T + t] * parts[T + t]`: both have half of the bits of a number. What is
    smaller than 2^-13 of the largest of its row loses bits, at most 2^-21 of that one. To be called in a kernel.
    """
    largest = jnp.max(jnp.abs(x.astype(jnp.float32)), axis=1, keepdims=True)
    # A power of two from its bits, and its inverse: the largest number lies between 128 and 256 of them.
    power = lax.bitcast_convert_type(jnp.maximum(largest, 2.0**-100), jnp.uint32) & jnp.uint32(0x7F800000)
    unit, inverse = power - jnp.uint32(7 << 23), jnp.uint32((254 + 7) << 23) - power
    scaled = x.astype(jnp.float32) * lax.bitcast_convert_type(inverse, jnp.float32)
    high = scaled.astype(jnp.float8_e4m3fn)
    low = (scaled - high.astype(jnp.float32)) * _LOW
    scales = lax.bitcast_convert_type(unit, jnp.float32)
    return jnp.concatenate([high, low.astype(high.dtype)]), jnp.concatenate([scales, scales / _LOW])


def _dot(x: jax.Array, weights: jax.Array) -> jax.Array:
    is_integer = jnp.issubdtype(x.dtype, jnp.integer)
    out = lax.dot_general(
        x,
        weights,
        (((1,), (0,)), ((), ())),
        preferred_element_type=jnp.int32 if is_integer else jnp.float32,
        precision=lax.Precision.HIGHEST if x.dtype == jnp.float32 else None,
    )
    return out.astype(jnp.float32)


def kernel(_layer: Ref, *refs: Ref, body: Body, names: tuple[str, ...]) -> None:
    """One block of strips times one window of rows. `names` says which references there are, in this order:

    x [W, in], row_scales [W, 1], sums [W, G] of each group's inputs, values [N, in, C], scales and offsets [N, G, C],
    and out [W, N * C].
    """
    of = dict(zip(names, refs, strict=True))
    x, values, scales, offsets, out = of["x"], of["values"], of["scales"], of.get("offsets"), of["out"]
    strips, _, columns = values.shape

    def multiply(index: Any, _: None) -> None:
        rows = pl.ds(pl.multiple_of(index * body.block, body.block), body.block)
        own, part_scales = split_float8(x[rows, :]) if body.split_float8 else (x[rows, :].astype(body.wide), None)
        sums = of["sums"][rows, :] if "sums" in of else None
        for strip in range(strips):
            own_offsets = None if offsets is None else offsets[strip]
            result = body.product(own, values[strip], scales[strip], sums, own_offsets, part_scales)
            if "row_scales" in of:
                result *= of["row_scales"][rows, :]
            out[rows, strip * columns : (strip + 1) * columns] = result.astype(out.dtype)

    blocks = x.shape[0] // body.block
    if blocks == 1:
        multiply(0, None)
    else:
        lax.fori_loop(0, blocks, multiply, None)
