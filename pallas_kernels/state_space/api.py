"""The state space that models call."""

from collections.abc import Mapping
from typing import Protocol

import jax

from jaxllm.pallas_kernels.paged_attention.ragged import RaggedBatch
from jaxllm.pallas_kernels.recurrence import StateRows
from jaxllm.pallas_kernels.state_space.reference import reference_state_space
from jaxllm.pallas_kernels.state_space.xla import xla_state_space


class StateSpace(Protocol):
    """What every implementation is: `state_space` without the choice."""

    def __call__(
        self,
        x: jax.Array,
        rate: jax.Array,
        decay: jax.Array,
        write: jax.Array,
        read: jax.Array,
        states: jax.Array,
        layer: int | jax.Array,
        rows: StateRows,
        batch: RaggedBatch,
        *,
        platform: str = "cpu",
    ) -> tuple[jax.Array, jax.Array]:
        """See `state_space`."""
        ...


IMPLEMENTATIONS: Mapping[str, StateSpace] = {"reference": reference_state_space, "xla": xla_state_space}
"""`reference` is slow and obvious, `xla` runs everywhere."""


def state_space(
    x: jax.Array,
    rate: jax.Array,
    decay: jax.Array,
    write: jax.Array,
    read: jax.Array,
    states: jax.Array,
    layer: int | jax.Array,
    rows: StateRows,
    batch: RaggedBatch,
    *,
    platform: str = "cpu",
    implementation: str = "xla",
) -> tuple[jax.Array, jax.Array]:
    """Mamba-2's recurrence, state space duality (arXiv 2405.21060).

    For each token S = exp(decay) S + rate x write'; out = S read.

    Axis letters: T tokens, N heads, H size of a head, G groups, B size of the state, L layers.

    Args:
        x: [T, N, H].
        rate: float32 [T, N] how much of `x` is written, the step size ("dt").
        decay: float32 [T, N] logarithm of what is kept, at most 0 (dt A).
        write: [T, G, B], of all heads of a group ("B").
        read: [T, G, B] ("C").
        states: float32 [L, slots, N, H, B] of each request; updated in place where they are donated.
        layer: which of the states are this layer's.
        rows: where those of each row lie.
        batch: which tokens are whose; its pages are not used.
        platform: JAX's name of what is compiled for.
        implementation: a name in `IMPLEMENTATIONS`.

    Returns:
        float32 [T, N, H], finite but meaningless for padding, and the states behind this step's tokens.

    Raises:
        KeyError: no implementation of that name.
    """
    own = IMPLEMENTATIONS[implementation]
    return own(x, rate, decay, write, read, states, layer, rows, batch, platform=platform)
