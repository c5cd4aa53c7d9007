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


class HeadProjection(nnx.Module):
    """A matrix for every head: `weight` [N * out, in], one head after the other. Devices share the heads."""

    def __init__(self, heads: int, in_size: int, out_size: int, *, dtype: jnp.dtype, options: ForwardOptions) -> None:
        self.weight = parameter((heads * out_size, in_size), dtype, sharding(options.mesh, "heads", "hidden"))
        self.shape, self.mesh = (heads, out_size, in_size), options.mesh
        self.adapters: HeadSlots | None = None

    def __call__(self, x: jax.Array, context: ForwardContext) -> jax.Array:
        """Every head's product: `x` [T, N, in] to [T, N, out], in the type of `x`."""
        return self._product(x, context, "tni,noi->tno")

    def transposed(self, x: jax.Array, context: ForwardContext) -> jax.Array:
        """Every head's product with the transposed matrix: `x` [T, N, out] to [T, N, in], in the type of `x`."""
        return self._product(x, context, "tno,noi->tni")

    def _product(self, x: jax.Array, context: ForwardContext, product: str) -> jax.Array:
        matrices = self.weight[...].reshape(self.shape)
        out = jnp.einsum(product, x, matrices, preferred_element_type=jnp.float32)
        if self.adapters is not None and context.adapters is not None:
            out = self.adapters.add(out, x, context.adapters, is_transposed=product.startswith("tno"))
        return out.astype(x.dtype)
