"""Matrix products with weights kept as checkpoints have them, (out, in)."""

import jax
import jax.numpy as jnp
from flax import nnx
from jax import lax

from jaxllm.models.layers.parameter import AS_THEY_ARE, Merged, Rows, parameter
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import constrain, model_parallel, sharding
from jaxllm.pallas_kernels.cpu import products

WEIGHT_LEFT_UP_TO = 64
"""Rows of activations up to which XLA's CPU matmul is faster with the weight as its left operand."""


def matmul(
    x: jax.Array,
    weight: jax.Array,
    options: ForwardOptions,
    out_dtype: jnp.dtype | None = None,
    num_rows: jax.Array | None = None,
) -> jax.Array:
    """`x [T, in]` times `weight [out, in]` transposed: [T, out] in `out_dtype`, float32 by default.

    Rows from `num_rows` (int32 []) on are padding, whose products nobody needs.
    """
    kind = jnp.float32 if out_dtype is None else out_dtype
    if options.native_matmul and kind == jnp.float32 and products.fits(x, weight):
        return products.matmul(x, weight, num_rows)
    if options.platform == "cpu" and x.shape[0] <= WEIGHT_LEFT_UP_TO:
        return _weight_left(x, weight, kind)
    return lax.dot_general(x, weight, (((1,), (1,)), ((), ())), preferred_element_type=kind)


def _weight_left(x: jax.Array, weight: jax.Array, kind: jnp.dtype | type) -> jax.Array:
    """The same with the weight as the left operand and the few activations, transposed, as the right one.

    XLA's CPU matmul is then up to twice as fast: 0.95 x for 1 row, 2.1 x for 4, 1.7 x for 8, 1.5 x for 32, 1.1 x for
    64, but 0.96 x for 128 and 0.88 x for 256 (300 MB of weights in float32, two cores with AVX-512). The barriers keep
    XLA from folding the transposes back into the product, which would exchange the operands again.
    """
    columns = lax.optimization_barrier(x.T)
    return lax.optimization_barrier(
        lax.dot_general(weight, columns, (((1,), (0,)), ((), ())), preferred_element_type=kind)
    ).T


class Linear(nnx.Module):
    """`weight` [out, in] and, if asked for, `bias` [out]. Accumulates in float32, returns the type of its input.

    `axes` are the logical names of (out, in), see `jaxllm.models.sharding`. Where `in` is split over devices their
    partial sums are added up in the type of the input, half the traffic of float32 for bfloat16.
    """

    def __init__(
        self,
        in_size: int,
        out_size: int,
        *,
        bias: bool,
        dtype: jnp.dtype,
        axes: tuple[str | None, str | None],
        options: ForwardOptions,
        rows: Rows | Merged = AS_THEY_ARE,
    ) -> None:
        out_axis, _ = axes
        self.weight = parameter((out_size, in_size), dtype, sharding(options.mesh, *axes), rows)
        self.bias = parameter((out_size,), dtype, sharding(options.mesh, out_axis), rows) if bias else None
        self.axes, self.options, self.mesh = axes, options, options.mesh

    def __call__(self, x: jax.Array, num_rows: jax.Array | None = None) -> jax.Array:
        """Map `x` [T, in], of which the first `num_rows` count, to [T, out]."""
        out_axis, in_axis = self.axes
        partial = model_parallel(self.mesh) > 1 and sharding(self.mesh, in_axis) != sharding(self.mesh, None)
        out = matmul(x, self.weight[...], self.options, x.dtype if partial else None, num_rows)
        out = constrain(out, self.mesh, None, out_axis)
        if self.bias is not None:
            out = out + self.bias[...].astype(out.dtype)
        return out.astype(x.dtype)
