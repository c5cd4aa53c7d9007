"""What a product of low rank takes.

Axis letters: T tokens, S slots of adapters, Q rank of every slot, P parts of the outputs, L layers.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import register_dataclass

BLOCK = 128
"""Columns of a block of slots: what the matrix unit of a TPU takes at a time."""


def slots_per_block(slots: int, rank: int) -> int:
    """How many slots are one operand of a product.

    An adapter's result must not depend on the slot it is in nor on what lies in others, so that every block of an
    engine has the same width: XLA adds up numbers in another order for another one.
    """
    return min(slots, max(1, BLOCK // rank))


def whole_blocks(slots: int, rank: int) -> int:
    """As many slots, and those that make the last block whole."""
    size = slots_per_block(slots, rank)
    return -(-slots // size) * size


@dataclass(frozen=True)
class Outputs:
    """What the outputs of a matrix are: for each of `blocks` devices, `sizes[p]` outputs of every part p."""

    sizes: tuple[int, ...]
    blocks: int = 1

    @property
    def total(self) -> int:
        """Outputs of the matrix."""
        return self.blocks * sum(self.sizes)


@register_dataclass
@dataclass(frozen=True)
class LowRank:
    """The matrices of all slots. The product of a token is `up[s].T @ (down[s] @ x)` with the slot s of its adapter.

    Outputs that are several matrices side by side, such as query, key and value, have a `down` each: rows `p * Q` to
    `(p + 1) * Q` of it are for part p. Slots without an adapter, and what is beyond the rank of one, are zeros.
    """

    down: jax.Array
    """[S, P * Q, in], or [L, S, P * Q, in]; S is a multiple of `slots_per_block`."""
    up: jax.Array
    """[S, Q, out], or [L, S, Q, out]."""
    layer: jax.Array | None
    """int32 [], which of L it is; None where these are of one layer."""
    outputs: Outputs = field(metadata={"static": True})

    @property
    def slots(self) -> int:
        """S."""
        return int(self.up.shape[-3])

    @property
    def rank(self) -> int:
        """Q."""
        return int(self.up.shape[-2])


class TokenSlots(NamedTuple):
    """Whose adapter each token has, and which blocks of slots there are tokens of. One for all products of a step."""

    slots: jax.Array
    """int32 [T]; -1 for none, as for padding."""
    blocks: jax.Array
    """int32 [S / slots per block], those that any token has a slot of first."""
    num_blocks: jax.Array
    """int32 [], how many these are."""

    @staticmethod
    def of(slots: jax.Array, num_slots: int, rank: int) -> "TokenSlots":
        """From the slots of the tokens, int32 [T]; those of an engine are `num_slots` of this rank."""
        size = slots_per_block(num_slots, rank)
        count = -(-num_slots // size)
        numbers = jnp.arange(count, dtype=jnp.int32)
        is_used = jnp.any((slots[:, None] >= 0) & (slots[:, None] // size == numbers), axis=0)
        order = jnp.argsort(~is_used, stable=True).astype(jnp.int32)
        return TokenSlots(slots, order, jnp.sum(is_used, dtype=jnp.int32))
