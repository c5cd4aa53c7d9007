"""Grouped products with quantized matrices that lie in strips: the kernel's loops of `kernel`, widening in VMEM."""

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from jaxllm.pallas_kernels.grouped_matmul.tpu.blocks import SUBLANES
from jaxllm.pallas_kernels.grouped_matmul.tpu.visits import Visits
from jaxllm.pallas_kernels.linear import Weight
from jaxllm.pallas_kernels.linear.tpu.blocks import Blocks, Dims
from jaxllm.pallas_kernels.linear.tpu.codes import code_bias
from jaxllm.pallas_kernels.linear.tpu.kernel import Body
from jaxllm.pallas_kernels.linear.weight_type import Values, WeightType
from jaxllm.pallas_kernels.tpu_common.target import Target, target

Ref = Any
"""A reference to memory, which Pallas does not type."""

_MOST_BYTES, _BLOCK, _MOST_WINDOW = 4 << 20, 256, 2048


def tpu_quantized_grouped_matmul(
    x: jax.Array,
    weight: Weight,
    kind: WeightType,
    sizes: jax.Array,
    out_dtype: DTypeLike = jnp.float32,
    *,
    blocks: Blocks | None = None,
) -> jax.Array:
    """See `grouped_matmul`; `weight` lies as `Strips` says, strips of a group side by side. Rows are bfloat16 or wider.

    Raises `NotImplementedError` where a strip does not fit the chip's vector memory.
    """
    stacks = {"values": weight.array, "scales": weight.scales, "offsets": weight.offsets}
    arrays = {name: array for name, array in stacks.items() if array is not None}
    by_strip = arrays if weight.layer is not None else {name: array[None] for name, array in arrays.items()}
    _, strips, depth, columns = by_strip["values"].shape
    own, groups = strips // len(sizes), 1 if kind.group is None else depth // kind.group
    by_row = {"x": x}
    if "offsets" in by_strip or code_bias(kind.code):
        by_row["sums"] = x.astype(jnp.float32).reshape(len(x), groups, -1).sum(axis=2)
    count, padding = len(x), -len(x) % SUBLANES
    if padding:
        by_row = {name: jnp.pad(array, ((0, padding), (0, 0))) for name, array in by_row.items()}
    wide, bits = x.dtype.name, 4 if kind.values == Values.CODES else 8
    dims = Dims(count + padding, depth, own, columns, groups, bits, wide, wide, jnp.dtype(out_dtype).name)
    blocks = blocks or choose_blocks(dims, len(sizes), target())
    visits, steps = Visits.of(sizes, count + padding, blocks.window), own // blocks.strips

    def row_spec(width: int) -> pl.BlockSpec:
        return pl.BlockSpec((blocks.window, width), lambda step, visit, group, window, *_: (window[visit], 0))

    def strip_spec(array: jax.Array) -> pl.BlockSpec:
        def place(step: jax.Array, visit: jax.Array, *scalars: jax.Array) -> tuple[Any, ...]:
            return scalars[3][0], scalars[0][visit] * steps + step, 0, 0

        return pl.BlockSpec((None, blocks.strips, *array.shape[2:]), place)

    body = Body(kind.code, kind.group, kind.group is not None and 2 * blocks.block <= kind.group, wide, blocks.block)
    layer = jnp.asarray(0 if weight.layer is None else weight.layer, jnp.int32).reshape(1)
    out: jax.Array = pl.pallas_call(
        partial(_kernel, body=body, names=(*by_row, *by_strip, "out")),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=4,
            grid=(steps, visits.total),
            in_specs=[row_spec(array.shape[1]) for array in by_row.values()]
            + [strip_spec(array) for array in by_strip.values()],
            out_specs=pl.BlockSpec(
                (blocks.window, blocks.strips * columns), lambda step, visit, group, window, *_: (window[visit], step)
            ),
        ),
        out_shape=jax.ShapeDtypeStruct((count + padding, own * columns), out_dtype),
        compiler_params=pltpu.CompilerParams(
            vmem_limit_bytes=min(blocks.vmem_bytes(dims) * 5 // 4, target().vmem_bytes), disable_bounds_checks=True
        ),
        name="quantized_grouped_matmul",
    )(visits.group, visits.window, visits.ends, layer, *by_row.values(), *by_strip.values())
    return out[:count] if padding else out


def _kernel(group: Ref, window: Ref, ends: Ref, _layer: Ref, *refs: Ref, body: Body, names: tuple[str, ...]) -> None:
    """One visit, see `kernel` and `linear.tpu.kernel`."""
    of = dict(zip(names, refs, strict=True))
    x, values, scales, offsets, out = of["x"], of["values"], of["scales"], of.get("offsets"), of["out"]
    visit, (rows, (strips, _, columns)) = pl.program_id(1), (x.shape[0], values.shape)
    own, before = group[visit], window[visit] * rows
    begin, end = jnp.maximum(ends[own] - before, 0), jnp.minimum(ends[own + 1] - before, rows)
    first = begin // SUBLANES * SUBLANES

    def multiply(index: Any, _: None) -> None:
        # A block that would reach beyond the window computes some rows again.
        start = pl.multiple_of(jnp.minimum(first + index * body.block, rows - body.block), SUBLANES)
        place = pl.ds(start, body.block)
        sums = of["sums"][place, :] if "sums" in of else None
        row = start + lax.broadcasted_iota(jnp.int32, (body.block, columns), 0)
        is_own = (row >= begin) & (row < end)
        for strip in range(strips):
            own_offsets = None if offsets is None else offsets[strip]
            product = body.product(x[place, :], values[strip], scales[strip], sums, own_offsets)
            to = slice(strip * columns, (strip + 1) * columns)
            out[place, to] = jnp.where(is_own, product.astype(out.dtype), out[place, to])

    lax.fori_loop(0, pl.cdiv(end - first, body.block), multiply, None)


def choose_blocks(dims: Dims, groups: int, target: Target) -> Blocks:
    """Block sizes for a chip, by what fits. Raises `NotImplementedError` where its vector memory is too small."""
    rows = -(-2 * dims.rows // groups // (2 * SUBLANES)) * 2 * SUBLANES
    block = min(1 << (rows - 1).bit_length(), _BLOCK, dims.rows)
    divisors = [count for count in range(1, dims.strips + 1) if dims.strips % count == 0]
    strips = max(count for count in divisors if count == 1 or count * dims.strip_bytes <= _MOST_BYTES)
    blocks, room = Blocks(strips, min(_MOST_WINDOW, dims.rows), block), target.vmem_bytes * 4 // 5
    while blocks.vmem_bytes(dims) > room and blocks.window > SUBLANES:
        window = max(blocks.window // 2 // SUBLANES * SUBLANES, SUBLANES)
        blocks = replace(blocks, window=window, block=min(blocks.block, window))
    if blocks.vmem_bytes(dims) > target.vmem_bytes:
        raise NotImplementedError(
            f"grouped products with 'tpu' hold {dims.columns} columns of {dims.depth} in vector memory, and this "
            f"chip has {target.vmem_bytes >> 20} MiB of it; choose 'xla'"
        )
    return blocks
