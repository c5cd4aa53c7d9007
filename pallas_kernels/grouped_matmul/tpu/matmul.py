"""The call of the kernel in `kernel`."""

from functools import partial

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu
from jax.typing import DTypeLike

from jaxllm.pallas_kernels.grouped_matmul.tpu.blocks import SUBLANES, Blocks, Dims, choose_blocks
from jaxllm.pallas_kernels.grouped_matmul.tpu.kernel import kernel, product_dtype
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
