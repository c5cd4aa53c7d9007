"""The product of each token with the adapter that it has, added to what it has already."""

from collections.abc import Mapping
from functools import partial
from typing import Protocol

import jax

from jaxllm.pallas_kernels.linear import NOTHING, Fused
from jaxllm.pallas_kernels.low_rank.cpu.call import can_add, cpu_add_low_rank
from jaxllm.pallas_kernels.low_rank.operands import LowRank, TokenSlots
from jaxllm.pallas_kernels.low_rank.reference import reference_add_low_rank
from jaxllm.pallas_kernels.low_rank.xla import xla_add_low_rank


class AddLowRank(Protocol):
    """What every implementation is: `add_low_rank` without the choice."""

    def __call__(
        self, base: jax.Array, x: jax.Array, matrices: LowRank, tokens: TokenSlots, fused: Fused = NOTHING
    ) -> jax.Array:
        """See `add_low_rank`."""
        ...


IMPLEMENTATIONS: Mapping[str, AddLowRank] = {
    "reference": reference_add_low_rank,
    "xla": xla_add_low_rank,
    "cpu": cpu_add_low_rank,
    "cpu_narrow": partial(cpu_add_low_rank, is_narrow=True),
}
"""`reference` is slow and obvious, `xla` runs everywhere, `cpu` is a kernel compiled by Numba. `cpu_narrow` is the same
for processors with AVX512-BF16: it does not widen bfloat16 outside."""

__all__ = ["IMPLEMENTATIONS", "AddLowRank", "add_low_rank", "can_add"]


def add_low_rank(
    base: jax.Array,
    x: jax.Array,
    matrices: LowRank,
    tokens: TokenSlots,
    fused: Fused = NOTHING,
    *,
    implementation: str = "xla",
) -> jax.Array:
    """`base` plus the product of each token's activations with the matrices of its slot.

    A token's result depends on its own row and its own adapter alone: not on the slot, nor on other tokens, nor on what
    other slots hold. One without an adapter keeps its bits.

    Args:
        base: [T, out].
        x: [T, in], or what `fused` prepares rows of that size from.
        matrices: of all slots.
        tokens: the slot of each token.
        fused: what is done to rows of `x` first. Its residual is not added here.
        implementation: a name in `IMPLEMENTATIONS`.

    Returns:
        [T, out] in the type of `base`; sums are float32.

    Raises:
        KeyError: no implementation of that name.
        NotImplementedError: `cpu` and `cpu_narrow` do not take these matrices, see `can_add`.
    """
    return IMPLEMENTATIONS[implementation](base, x, matrices, tokens, fused)
