"""Grouped products on TPUs: the matrix of each group passes through VMEM once, while its rows are multiplied.

    for each strip of columns:
        for each visit (see `visits`):        the pipeline fetches the next strip and window meanwhile
            for each block of the group's rows in the window:
                one product over the whole depth, stored where rows are of the group

Rows of two groups may share a register. A block begins with a whole one, and what it computes of its neighbours' rows
is not stored.
"""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from jaxllm.pallas_kernels.grouped_matmul.tpu.blocks import SUBLANES, Blocks, Dims, choose_blocks
from jaxllm.pallas_kernels.grouped_matmul.tpu.visits import Visits
from jaxllm.pallas_kernels.linear import Weight
from jaxllm.pallas_kernels.tpu_common.target import target


def tpu_grouped_matmul(
    x: jax.Array,
    weight: Weight,
    sizes: jax.Array,
    out_dtype: DTypeLike = jnp.float32,
    *,
    blocks: Blocks | None = None,
) -> jax.Array:
    """See `grouped_matmul`; of a matrix without rows nothing is read. `blocks` in place of those of the chip.

    Raises `NotImplementedError` where strips of the matrices do not fit the chip's vector memory.
    """
    stack = weight.array[None] if weight.layer is None else weight.array
    layer = jnp.asarray(0 if weight.layer is None else weight.layer, jnp.int32).reshape(1)
    count, padding = len(x), -len(x) % SUBLANES
    x = jnp.pad(x, ((0, padding), (0, 0))) if padding else x
    wide = product_dtype(x.dtype, stack.dtype).name
    out_size = stack.shape[1] // len(sizes)
    dims = Dims(len(x), len(sizes), x.shape[1], out_size, wide, jnp.dtype(out_dtype).name)
    blocks = blocks or choose_blocks(dims, target())
    visits = Visits.of(sizes, len(x), blocks.window)
    strips = out_size // blocks.columns

    def rows(strip: jax.Array, visit: jax.Array, *scalars: jax.Array) -> tuple[jax.Array, int]:
        return scalars[1][visit], 0

    def matrix(strip: jax.Array, visit: jax.Array, *scalars: jax.Array) -> tuple[jax.Array, jax.Array, int]:
        return scalars[3][0], scalars[0][visit] * strips + strip, 0

    def result(strip: jax.Array, visit: jax.Array, *scalars: jax.Array) -> tuple[jax.Array, jax.Array]:
        return scalars[1][visit], strip

    depth = x.shape[1]
    out: jax.Array = pl.pallas_call(
        partial(kernel, block=blocks.block),
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=4,
            grid=(strips, visits.total),
            in_specs=[
                pl.BlockSpec((blocks.window, depth), rows),
                pl.BlockSpec((None, blocks.columns, stack.shape[2]), matrix),
            ],
            out_specs=pl.BlockSpec((blocks.window, blocks.columns), result),
        ),
        out_shape=jax.ShapeDtypeStruct((len(x), out_size), out_dtype),
        compiler_params=pltpu.CompilerParams(
            vmem_limit_bytes=min(blocks.vmem_bytes(dims) * 5 // 4, target().vmem_bytes), disable_bounds_checks=True
        ),
        name="grouped_matmul",
    )(visits.group, visits.window, visits.ends, layer, x, stack)
    return out[:count] if padding else out


Ref = Any
"""A reference to memory, which Pallas does not type."""


def product_dtype(one: DTypeLike, other: DTypeLike) -> jnp.dtype:
    """The type in which rows and matrices of these types are multiplied: theirs, or float32 if they differ."""
    return jnp.dtype(one if one == other else jnp.float32)


def kernel(group: Ref, window: Ref, ends: Ref, _layer: Ref, x: Ref, matrix: Ref, out: Ref, *, block: int) -> None:
    """One visit: `x` [W, in] times `matrix` [N, in], transposed, into `out` [W, N], in blocks of so many rows.

    For the scalars see `Visits`.
    """
    visit, rows = pl.program_id(1), x.shape[0]
    own, before = group[visit], window[visit] * rows
    begin, end = jnp.maximum(ends[own] - before, 0), jnp.minimum(ends[own + 1] - before, rows)
    first = begin // SUBLANES * SUBLANES
    wide = product_dtype(x.dtype, matrix.dtype)

    def multiply(index: Any, _: None) -> None:
        # A block that would reach beyond the window computes some rows again.
        start = pl.multiple_of(jnp.minimum(first + index * block, rows - block), SUBLANES)
        place = pl.ds(start, block)
        product = lax.dot_general(
            x[place, :].astype(wide),
            matrix[:, : x.shape[1]].astype(wide),
            (((1,), (1,)), ((), ())),
            preferred_element_type=jnp.float32,
            precision=lax.Precision.HIGHEST if wide == jnp.float32 else None,
        )
        row = start + lax.broadcasted_iota(jnp.int32, product.shape, 0)
        is_own = (row >= begin) & (row < end)
        out[place, :] = jnp.where(is_own, product.astype(out.dtype), out[place, :])

    lax.fori_loop(0, pl.cdiv(end - first, block), multiply, None)
