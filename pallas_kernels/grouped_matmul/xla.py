"""Grouped products in plain XLA operations, with weights as checkpoints have them."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.typing import DTypeLike

from jaxllm.pallas_kernels.linear import Weight

_DIMENSIONS = lax.RaggedDotDimensionNumbers(
    dot_dimension_numbers=(((1,), (2,)), ((), ())), lhs_ragged_dimensions=[0], rhs_group_dimensions=[0]
)


def ragged_dot(x: jax.Array, weight: Weight, sizes: jax.Array, out_dtype: DTypeLike = jnp.float32) -> jax.Array:
    """XLA's own, [R, out]. On CPU it computes all groups; on TPU it copies the matrices twice, see decision 030."""
    matrices = _matrices(weight, len(sizes))
    out = lax.ragged_dot_general(x, matrices, sizes, _DIMENSIONS, preferred_element_type=jnp.float32)
    return out.astype(out_dtype)


def active_groups(x: jax.Array, weight: Weight, sizes: jax.Array, out_dtype: DTypeLike = jnp.float32) -> jax.Array:
    """All rows times the matrix of each group that has some, [R, out], for CPUs.

    Only these matrices are read. Computes more than it must where many rows are spread over many groups.
    """
    matrices = _matrices(weight, len(sizes))
    ends = jnp.cumsum(sizes)
    row = jnp.arange(len(x), dtype=jnp.int32)

    def add(group: jax.Array, out: jax.Array) -> jax.Array:
        own = (row >= ends[group] - sizes[group]) & (row < ends[group])
        product = lax.dot_general(x, matrices[group], (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
        return jnp.where(own[:, None], product, out)

    def body(group: jax.Array, out: jax.Array) -> jax.Array:
        changed: jax.Array = lax.cond(sizes[group] > 0, add, lambda _, out: out, group, out)
        return changed

    out: jax.Array = lax.fori_loop(0, len(sizes), body, jnp.zeros((len(x), matrices.shape[1]), jnp.float32))
    return out.astype(out_dtype)


def _matrices(weight: Weight, groups: int) -> jax.Array:
    """[G, out, in]."""
    array = weight.array if weight.layer is None else weight.array[weight.layer]
    return array.reshape(groups, -1, array.shape[-1])
