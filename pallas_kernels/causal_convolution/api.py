"""Convolution of every channel for itself over the last tokens of its row."""

from typing import Protocol

import jax

from jaxllm.pallas_kernels.causal_convolution.reference import reference_causal_convolution
from jaxllm.pallas_kernels.causal_convolution.xla import xla_causal_convolution


class CausalConvolution(Protocol):
    """The protocol of every implementation: `causal_convolution` without the choice."""

    def __call__(
        self,
        x: jax.Array,
        states: jax.Array,
        weight: jax.Array,
        bias: jax.Array | None,
        query_start: jax.Array,
        num_drafts: jax.Array | None,
    ) -> tuple[jax.Array, jax.Array]:
        """See `causal_convolution`."""
        ...


IMPLEMENTATIONS: dict[str, CausalConvolution] = {
    "reference": reference_causal_convolution,
    "xla": xla_causal_convolution,
}
"""`reference` is slow and obvious, `xla` runs everywhere."""


def causal_convolution(
    x: jax.Array,
    states: jax.Array,
    weight: jax.Array,
    bias: jax.Array | None,
    query_start: jax.Array,
    num_drafts: jax.Array | None = None,
    *,
    implementation: str = "xla",
) -> tuple[jax.Array, jax.Array]:
    """Depthwise causal convolution over ragged rows.

    Axis letters: T tokens, R rows, D channels, X tokens that an output depends on.

    Args:
        x: [T, D], rows one after the other.
        states: [R, X - 1, D], what each row had before these tokens, oldest first; zeros where it begins.
        weight: [D, X], the last column is that of the token itself.
        bias: [D], or None.
        query_start: int32 [R + 1], first token of each row; what is after the last row is padding.
        num_drafts: int32 [R], how many last tokens of each row its new state is without; None: no row has any.
        implementation: a name in `IMPLEMENTATIONS`.

    Returns:
        [T, D] in the type of `x`, computed in float32, of padding unspecified but finite; and the rows' states after
        these tokens, [R, X - 1, D] in the type of `states`. States of rows without tokens are unchanged.

    Raises:
        KeyError: no implementation of that name.
    """
    return IMPLEMENTATIONS[implementation](x, states, weight, bias, query_start, num_drafts)
