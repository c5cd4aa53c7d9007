"""A linear map: rows of activations times a weight matrix, in whatever layout it lies."""

from collections.abc import Callable, Mapping
from functools import partial

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxllm.pallas_kernels.linear.cpu.packed import can_pack, packed_layout
from jaxllm.pallas_kernels.linear.fused import NOTHING, Fused
from jaxllm.pallas_kernels.linear.weight import Weight, WeightLayout
from jaxllm.pallas_kernels.linear.xla import RowMajor

LAYOUTS: Mapping[str, Callable[[tuple[int, ...], str], WeightLayout]] = {
    "xla": lambda shape, dtype: RowMajor(shape),
    "cpu": packed_layout,
    "cpu_pairs": partial(packed_layout, multiplies_pairs=True),
}
"""By the implementation, from a shape and the type of weights: `xla` runs everywhere, `cpu` is a kernel compiled by
Numba, `cpu_pairs` one for processors that multiply bfloat16 as it is."""

__all__ = ["LAYOUTS", "can_pack", "choose_layout", "linear"]


def linear(
    x: jax.Array,
    weight: Weight,
    num_rows: jax.Array | int | None = None,
    fused: Fused = NOTHING,
    *,
    out_dtype: DTypeLike = jnp.float32,
    platform: str = "cpu",
) -> jax.Array:
    """`x [T, in]` times a matrix `[out, in]`, transposed: [T, out] in `out_dtype`. Sums are float32.

    Args:
        x: the activations.
        weight: the matrix; its layout decides on the implementation.
        num_rows: int32 []; rows from there on are padding, whose products mean nothing. All count by default.
        fused: what is done to rows first, and what is added. A kernel takes over what it can.
        out_dtype: with a residual, the type may be that of the residual.
        platform: JAX's name of what is compiled for.
    """
    return weight.layout.multiply(x, weight, num_rows, fused, out_dtype=out_dtype, platform=platform)


def choose_layout(
    shape: tuple[int, ...], dtype: DTypeLike, *, native: bool, multiplies_pairs: bool = False
) -> WeightLayout:
    """The layout of a matrix of `shape` (out, in): packed if `native` kernels are wanted and can read it.

    With `multiplies_pairs`, which the processor must be able to do, bfloat16 is multiplied as it is.
    """
    name = jnp.dtype(dtype).name
    if native and can_pack(shape[1], name):
        return packed_layout(shape, name, multiplies_pairs=multiplies_pairs)
    return RowMajor(shape)
