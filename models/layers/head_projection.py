"""Matrices of every head."""

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp
from flax import nnx

from jaxllm.models.forward_context import ForwardContext
from jaxllm.models.layers.parameter import parameter
from jaxllm.models.options import ForwardOptions
from jaxllm.models.sharding import sharding

if TYPE_CHECKING:
    from jaxllm.models.layers.adapter_slots import HeadSlots


_SUMS = jnp.float32
MOST_APART = 32
"""Heads that are multiplied one after the other on CPUs: 1.8 to 10 times as fast as to widen the matrices of 16."""


def head_products(x: jax.Array, matrices: jax.Array, options: ForwardOptions, *, transposed: bool = False) -> jax.Array:
    """Every head's rows `x` [T, N, in] times its matrix `matrices` [N, out, in], float32 [T, N, out].

    Or if `transposed`, `x` [T, N, out] times the matrices, [T, N, in].
    """
    x_axes, y_axes = ("to", "ti") if transposed else ("ti", "to")
    if options.platform != "cpu" or x.dtype == jnp.float32:
        return jnp.einsum(f"{_of_heads(x_axes)},noi->{_of_heads(y_axes)}", x, matrices, preferred_element_type=_SUMS)
    # XLA for CPUs has no products of narrow numbers with sums in float32 for many matrices at once.
    if options.mesh is not None or len(matrices) > MOST_APART:
        wide = x.astype(_SUMS), matrices.astype(_SUMS)
        return jnp.einsum(f"{_of_heads(x_axes)},noi->{_of_heads(y_axes)}", *wide)
    product = f"{x_axes},oi->{y_axes}"
    each = [
        jnp.einsum(product, x[:, head], matrices[head], preferred_element_type=_SUMS) for head in range(len(matrices))
    ]
    return jnp.stack(each, axis=1)


def _of_heads(axes: str) -> str:
    return f"{axes[0]}n{axes[1]}"


class HeadProjection(nnx.Module):
    """A matrix for every head: `weight` [N * out, in], one head after the other. Devices share the heads."""

    def __init__(self, heads: int, in_size: int, out_size: int, *, dtype: jnp.dtype, options: ForwardOptions) -> None:
        self.weight = parameter((heads * out_size, in_size), dtype, sharding(options.mesh, "heads", "hidden"))
        self.shape, self.options = (heads, out_size, in_size), options
        self.adapters: HeadSlots | None = None

    def __call__(self, x: jax.Array, context: ForwardContext) -> jax.Array:
        """Every head's product: `x` [T, N, in] to [T, N, out], in the type of `x`."""
        return self._product(x, context, transposed=False)

    def transposed(self, x: jax.Array, context: ForwardContext) -> jax.Array:
        """Every head's product with the transposed matrix: `x` [T, N, out] to [T, N, in], in the type of `x`."""
        return self._product(x, context, transposed=True)

    def _product(self, x: jax.Array, context: ForwardContext, *, transposed: bool) -> jax.Array:
        out = head_products(x, self.weight[...].reshape(self.shape), self.options, transposed=transposed)
        if self.adapters is not None and context.adapters is not None:
            out = self.adapters.add(out, x, context.adapters, is_transposed=transposed)
        return out.astype(x.dtype)
