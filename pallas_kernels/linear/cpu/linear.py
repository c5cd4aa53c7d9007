"""`x @ weight.T` by the kernel in `matmul`, for weights in panels."""

from functools import partial
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.linear.cpu.packing import PANEL
from jaxllm.pallas_kernels.numba.targets import Target, provide

WEIGHT_BYTES = {"float32": 4, "bfloat16": 2}
"""Types of weights that the kernel reads, and their bytes."""


def matmul_target(dtype: str) -> Target:
    """The kernel for weights of a type (NumPy's name)."""
    return Target(f"jaxllm_matmul_{dtype}", partial(_build, dtype), Path(__file__).parent)


def _build(dtype: str) -> bytes:
    from jaxllm.pallas_kernels.linear.cpu.matmul import make_kernel
    from jaxllm.pallas_kernels.numba.build import build

    return build(make_kernel(dtype, WEIGHT_BYTES[dtype]))


class Norm(NamedTuple):
    """Rows are first scaled to unit mean square with `epsilon` beneath the root, and by `weight` [in]."""

    weight: jax.Array
    epsilon: float


def fits(in_size: int, dtype: str) -> bool:
    """Whether the kernel can: rows of whole vectors, and weights of a type (NumPy's name) that it reads."""
    return in_size % PANEL == 0 and dtype in WEIGHT_BYTES


def matmul(
    x: jax.Array,
    panels: jax.Array,
    num_rows: jax.Array | int | None = None,
    layer: jax.Array | int = 0,
    *,
    norm: Norm | None = None,
    is_gated: bool = False,
    plus: jax.Array | None = None,
) -> jax.Array:
    """`x [T, in]` times a matrix [out, in], transposed: float32 [T, 16 P].

    Args:
        x: float32.
        panels: the matrix as [P, in, 16], or matrices of several layers as [L, P, in, 16]; see `panels`.
        num_rows: int32 []; only the first `num_rows` are computed, all by default. The others are zero.
        layer: int32 [], which of several matrices.
        norm: what is done to rows first.
        is_gated: `x` is [T, 2 in]: `silu` of its first half times its second one is multiplied.
        plus: float32 [T, 16 P], added to the result.

    A row's result depends on nothing but the row and the weights.
    """
    target = matmul_target(panels.dtype.name)
    provide(target)
    several = panels if panels.ndim == 4 else panels[None]
    _, count, depth, _ = several.shape
    tokens, out = x.shape[0], count * PANEL
    ints = jnp.stack([jnp.int32(tokens if num_rows is None else num_rows), jnp.int32(layer)])
    none = jnp.zeros(0, jnp.float32)
    prepared = (tokens, depth) if norm is not None or is_gated else (0, 0)
    y, _ = jax.ffi.ffi_call(
        target.name, (jax.ShapeDtypeStruct((tokens, out), jnp.float32), jax.ShapeDtypeStruct(prepared, jnp.float32))
    )(
        x,
        several,
        ints,
        none if norm is None else norm.weight,
        jnp.full(1, 0.0 if norm is None else norm.epsilon, jnp.float32),
        none.reshape(0, 0) if plus is None else plus,
    )
    return y
