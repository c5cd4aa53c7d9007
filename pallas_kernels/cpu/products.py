"""`x @ weight.T` by the kernel in `matmul`."""

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.cpu.targets import MATMUL, default_folder, provide


def fits(x: jax.Array, weight: jax.Array) -> bool:
    """Whether the kernel can: float32, and rows of whole vectors."""
    return x.dtype == weight.dtype == jnp.float32 and weight.shape[1] % 16 == 0


def matmul(x: jax.Array, weight: jax.Array, num_rows: jax.Array | int | None = None) -> jax.Array:
    """`x [T, in]` times `weight [out, in]` transposed: float32 [T, out].

    Only the first `num_rows` rows (int32 []) are computed, all by default; the others are zero. A row's result depends
    on nothing but the row and the weights.
    """
    provide([MATMUL], default_folder())
    rows = jnp.asarray(x.shape[0] if num_rows is None else num_rows, jnp.int32)
    out = jax.ShapeDtypeStruct((x.shape[0], weight.shape[0]), jnp.float32)
    return jax.ffi.ffi_call(MATMUL, out)(x, weight, rows)
