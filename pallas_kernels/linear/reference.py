"""The product the obvious way: the oracle of the other implementations."""

import jax
import jax.numpy as jnp
from jax import lax

from jaxllm.pallas_kernels.linear.fused import NOTHING, Fused


def reference_linear(x: jax.Array, matrix: jax.Array, fused: Fused = NOTHING) -> jax.Array:
    """See `linear`; `matrix` is [out, in], all of `x` counts, and everything is float32."""
    rows = fused.prepare(x.astype(jnp.float32))
    out = jnp.matmul(rows, matrix.astype(jnp.float32).T, precision=lax.Precision.HIGHEST)
    return out if fused.residual is None else out + fused.residual.astype(jnp.float32)
