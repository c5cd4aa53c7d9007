"""Compile a copy and a matrix product for an absent TPU, with dumps; run as a script: CHIP FOLDER."""

import sys
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from benchmarks.tpu.compile import compile_for
from benchmarks.tpu.kernels import Call

CHUNK = (64, 128)
"""Shape of what one trip of the copy moves, float32."""

CHUNKS = 5
"""Chunks that are copied, of those that there are; the program reads the number from an argument."""

CHUNKS_THERE = 8192
"""A quarter of a gibibyte, which no compiler puts anywhere but into device memory."""

MATRIX = 1024
"""Edge of the matrices, bfloat16."""


def copy_kernel(count: Any, source: Any, target: Any, buffer: Any, semaphore: Any) -> None:
    """Copy `count[0]` chunks through VMEM, one after the other."""

    def step(index: Any, _: None) -> None:
        fetch = pltpu.make_async_copy(source.at[index], buffer, semaphore)
        fetch.start()
        fetch.wait()
        store = pltpu.make_async_copy(buffer, target.at[index], semaphore)
        store.start()
        store.wait()

    lax.fori_loop(0, count[0], step, None)


def product_kernel(left: Any, right: Any, out: Any) -> None:
    """One block of rows times a whole matrix."""
    out[...] = jnp.dot(left[...], right[...], preferred_element_type=jnp.float32)


def both(count: Any, source: Any, left: Any, right: Any) -> Any:
    """The two kernels in one program."""
    place = pl.BlockSpec(memory_space=pltpu.HBM)
    copied = pl.pallas_call(
        copy_kernel,
        grid_spec=pltpu.PrefetchScalarGridSpec(
            num_scalar_prefetch=1,
            in_specs=[place],
            out_specs=place,
            grid=(1,),
            scratch_shapes=[pltpu.VMEM(CHUNK, jnp.float32), pltpu.SemaphoreType.DMA],
        ),
        out_shape=jax.ShapeDtypeStruct(source.shape, source.dtype),
        name="tiny_copy",
    )(count, source)
    # Where XLA fetched them into VMEM itself, the kernel would have nothing to read.
    left, right = (pltpu.with_memory_space_constraint(matrix, pltpu.HBM) for matrix in (left, right))
    rows = pl.BlockSpec((256, MATRIX), lambda i: (i, 0))
    product = pl.pallas_call(
        product_kernel,
        grid=(MATRIX // 256,),
        in_specs=[rows, pl.BlockSpec((MATRIX, MATRIX), lambda i: (0, 0))],
        out_specs=rows,
        out_shape=jax.ShapeDtypeStruct((MATRIX, MATRIX), jnp.float32),
        name="tiny_product",
    )(left, right)
    return copied, product


def main() -> None:
    """Compile for the chip and folder given as arguments."""
    matrix = jax.ShapeDtypeStruct((MATRIX, MATRIX), jnp.bfloat16)
    source = jax.ShapeDtypeStruct((CHUNKS_THERE, *CHUNK), jnp.float32)
    call = Call(partial(both), (np.array([CHUNKS], np.int32), source, matrix, matrix), (), "")
    compile_for(sys.argv[1], call, Path(sys.argv[2]))


if __name__ == "__main__":
    main()
