"""The state space that models call."""

from collections.abc import Mapping

import jax

from jaxllm.pallas_kernels.recurrence import LayerStates, RecurrentOperation
from jaxllm.pallas_kernels.state_space.inputs import StateSpaceInputs
from jaxllm.pallas_kernels.state_space.reference import reference_state_space
from jaxllm.pallas_kernels.state_space.xla import xla_state_space

IMPLEMENTATIONS: Mapping[str, RecurrentOperation[StateSpaceInputs]] = {
    "reference": reference_state_space,
    "xla": xla_state_space,
}
"""`reference` is slow and obvious, `xla` runs everywhere."""


def state_space(
    inputs: StateSpaceInputs, states: LayerStates, *, platform: str = "cpu", implementation: str = "xla"
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """Mamba-2's recurrence, state space duality (arXiv 2405.21060).

    For each token S = exp(decay) S + rate x write'; out = S read.

    Args:
        inputs: what the step's tokens bring.
        states: float32 [L, slots, N, H, B].
        platform: JAX's name of what is compiled for.
        implementation: a name in `IMPLEMENTATIONS`.

    Returns:
        float32 [T, N, H], finite but meaningless for padding, and the states after this step's tokens.

    Raises:
        KeyError: no implementation of that name.
    """
    return IMPLEMENTATIONS[implementation](inputs, states, platform=platform)
