"""Grouped products with quantized matrices. Ordinary models do not import this."""

from dataclasses import replace

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from jaxllm.pallas_kernels.grouped_matmul.xla import ragged_dot
from jaxllm.pallas_kernels.linear import RowMajor, Weight
from jaxllm.pallas_kernels.linear.cpu.quantized.layout import QuantizedPacked
from jaxllm.pallas_kernels.linear.quantized import QuantizedLayout, dequantize, quantize_rows
from jaxllm.pallas_kernels.linear.tpu.layout import Strips
from jaxllm.pallas_kernels.linear.weight_type import WeightType


def quantized_grouped_matmul(
    x: jax.Array, weight: Weight, sizes: jax.Array, out_dtype: DTypeLike = jnp.float32, platform: str = "cpu"
) -> jax.Array:
    """See `grouped_matmul`; `weight` has the matrices [G * out, in]."""
    if isinstance(weight.layout, Strips):
        return _streamed(x, weight, weight.layout.kind, sizes, out_dtype)
    if isinstance(weight.layout, QuantizedPacked):
        return weight.layout.grouped(x, weight, sizes).astype(out_dtype)
    weight = weight.own()
    if platform == "cpu":
        return _active_groups(x, weight, sizes, platform).astype(out_dtype)
    # As long as there is no kernel, XLA's own gets the matrices of a layer widened.
    assert isinstance(weight.layout, QuantizedLayout)
    kind, in_size = weight.layout.kind, x.shape[1]
    if weight.order is not None:
        x = jnp.take(x, weight.order, axis=1)
    rows, row_scale = quantize_rows(x, kind, weight.input_scale)
    matrices = dequantize(weight.array, weight.scales, weight.offsets, kind, in_size).astype(x.dtype)
    out = ragged_dot(rows.astype(x.dtype), Weight(RowMajor(matrices.shape), matrices), sizes)
    return (out if row_scale is None else out * row_scale).astype(out_dtype)


def _streamed(x: jax.Array, weight: Weight, kind: WeightType, sizes: jax.Array, out_dtype: DTypeLike) -> jax.Array:
    """By the kernel for TPUs, which multiplies quantized rows in the type of `x`."""
    from jaxllm.pallas_kernels.grouped_matmul.tpu.quantized import tpu_quantized_grouped_matmul

    def own(array: jax.Array) -> jax.Array:
        return array if weight.layer is None else array[weight.layer]

    if weight.order is not None:
        x = jnp.take(x, own(weight.order), axis=1)
    rows, row_scale = quantize_rows(x, kind, None if weight.input_scale is None else own(weight.input_scale))
    wide = out_dtype if row_scale is None else jnp.float32
    out = tpu_quantized_grouped_matmul(rows.astype(x.dtype), weight, kind, sizes, wide)
    return out if row_scale is None else (out * row_scale).astype(out_dtype)


def _active_groups(x: jax.Array, weight: Weight, sizes: jax.Array, platform: str) -> jax.Array:
    """All rows times the matrix of each group that has some, one after the other; see `xla.active_groups`."""
    ends, count = jnp.cumsum(sizes), len(sizes)
    row = jnp.arange(len(x), dtype=jnp.int32)

    def group_part(array: jax.Array | None, group: jax.Array) -> jax.Array | None:
        return None if array is None else array.reshape(count, -1, *array.shape[1:])[group]

    def add(group: jax.Array, out: jax.Array) -> jax.Array:
        own = (row >= ends[group] - sizes[group]) & (row < ends[group])
        values = group_part(weight.array, group)
        assert values is not None
        scales, offsets = group_part(weight.scales, group), group_part(weight.offsets, group)
        one = replace(weight, array=values, scales=scales, offsets=offsets)
        return jnp.where(own[:, None], weight.layout.multiply(x, one, platform=platform), out)

    def body(group: jax.Array, out: jax.Array) -> jax.Array:
        changed: jax.Array = lax.cond(sizes[group] > 0, add, lambda _, out: out, group, out)
        return changed

    empty = jnp.zeros((len(x), weight.array.shape[0] // count), jnp.float32)
    out: jax.Array = lax.fori_loop(0, count, body, empty)
    return out
