"""Low-rank products the obvious way: every token gathers the matrices of its slot."""

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.linear import NOTHING, Fused
from jaxllm.pallas_kernels.low_rank.operands import LowRank, TokenSlots


def reference_add_low_rank(
    base: jax.Array, x: jax.Array, matrices: LowRank, tokens: TokenSlots, fused: Fused = NOTHING
) -> jax.Array:
    """See `add_low_rank`."""
    x = fused.prepare(x)
    outputs, rank = matrices.outputs, matrices.rank
    down, up = (array if matrices.layer is None else array[matrices.layer] for array in (matrices.down, matrices.up))
    wide = jnp.float32
    own = jnp.maximum(tokens.slots, 0)
    hidden = jnp.einsum("tqi,ti->tq", down[own].astype(wide), x.astype(wide), precision="highest")
    hidden = hidden.astype(x.dtype).astype(wide)
    shape = (len(x), rank, outputs.blocks, sum(outputs.sizes))
    matrix, parts, first = up[own].astype(wide).reshape(shape), [], 0
    for part, size in enumerate(outputs.sizes):
        of_part = hidden[:, part * rank : (part + 1) * rank]
        parts.append(jnp.einsum("tq,tqbo->tbo", of_part, matrix[..., first : first + size], precision="highest"))
        first += size
    delta = jnp.concatenate(parts, axis=-1).reshape(base.shape)
    added = (base.astype(wide) + delta).astype(base.dtype)
    return jnp.where(tokens.slots[:, None] >= 0, added, base)
