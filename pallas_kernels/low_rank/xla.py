"""Low-rank products in plain XLA operations: a product with every block of slots that a token of the step is in.

The loop's length is data, so that a step without adapters costs a comparison, and there is no program for each number
of adapters. Tokens of other slots of a block are multiplied by zeros: exact, whatever they are.
"""

import jax
import jax.numpy as jnp
from jax import lax

from jaxllm.pallas_kernels.linear import NOTHING, Fused
from jaxllm.pallas_kernels.low_rank.operands import LowRank, TokenSlots, slots_per_block

FEWEST_ROWS = 2
"""XLA multiplies a single row by other code, which adds up in another order."""


def xla_add_low_rank(
    base: jax.Array, x: jax.Array, matrices: LowRank, tokens: TokenSlots, fused: Fused = NOTHING
) -> jax.Array:
    """See `add_low_rank`."""
    x = fused.prepare(x)
    count, rank, outputs = len(x), matrices.rank, matrices.outputs
    size, parts = slots_per_block(matrices.slots, rank), len(outputs.sizes)
    padding = max(0, FEWEST_ROWS - count)
    rows = jnp.pad(x, ((0, padding), (0, 0)))
    slots = jnp.pad(tokens.slots, (0, padding), constant_values=-1)
    column_slots = jnp.repeat(jnp.arange(size, dtype=jnp.int32), rank)

    def of_block(array: jax.Array, block: jax.Array) -> jax.Array:
        """The slots of a block of the layer, [size, ...], without a copy of the others."""
        zero = jnp.int32(0)
        tail = array.shape[-2:]
        if matrices.layer is None:
            return lax.dynamic_slice(array, (block * size, zero, zero), (size, *tail))
        begin = (matrices.layer, block * size, zero, zero)
        return lax.dynamic_slice(array, begin, (1, size, *tail))[0]

    def add_block(index: jax.Array, delta: jax.Array) -> jax.Array:
        block = tokens.blocks[index]
        # All slots of a part side by side: [P, size * Q, in].
        down = of_block(matrices.down, block).reshape(size, parts, rank, -1).swapaxes(0, 1)
        hidden = jnp.einsum("ti,pki->tpk", rows, down.reshape(parts, size * rank, -1), preferred_element_type=wide)
        is_own = slots[:, None] == block * size + column_slots
        hidden = jnp.where(is_own[:, None], hidden, 0).astype(x.dtype)
        up = of_block(matrices.up, block).reshape(size * rank, outputs.blocks, -1)
        first, found = 0, []
        for part, width in enumerate(outputs.sizes):
            own = up[..., first : first + width]
            found.append(jnp.einsum("tk,kbo->tbo", hidden[:, part], own, preferred_element_type=wide))
            first += width
        return delta + jnp.concatenate(found, axis=-1).reshape(delta.shape)

    wide = jnp.float32
    start = jnp.zeros((count + padding, outputs.total), wide)
    delta = lax.fori_loop(0, tokens.num_blocks, add_block, start)[:count]
    return (base.astype(wide) + delta).astype(base.dtype)
