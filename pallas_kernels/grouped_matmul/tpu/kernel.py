"""The kernel: the matrix of each group passes through VMEM once while the rows of the group are multiplied with it.

    for each strip of columns:
        for each visit (see `visits`):        the pipeline fetches the next strip and window meanwhile
            for each block of the group's rows in the window:
                one product over the whole depth, stored where rows are of the group

Rows of two groups may share a register. A block begins with a whole one, and what it computes of its neighbours' rows
is not stored.
"""

from typing import Any

import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.typing import DTypeLike

from jaxllm.pallas_kernels.grouped_matmul.tpu.blocks import SUBLANES

Ref = Any
"""A reference to memory, which Pallas does not type."""


def product_dtype(one: DTypeLike, other: DTypeLike) -> jnp.dtype:
    """The type in which rows and matrices of these types are multiplied: theirs, or float32 if they differ."""
    return jnp.dtype(one if one == other else jnp.float32)


def kernel(group: Ref, window: Ref, ends: Ref, _layer: Ref, x: Ref, matrix: Ref, out: Ref, *, block: int) -> None:
    """One visit: `x` [W, in] times `matrix` [N, in], transposed, into `out` [W, N], in blocks of so many rows.

    Of the scalars see `Visits`.
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
