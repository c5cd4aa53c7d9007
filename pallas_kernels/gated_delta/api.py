"""The gated delta rule that models call."""

from collections.abc import Mapping

import jax

from jaxllm.pallas_kernels.gated_delta.inputs import GatedDeltaInputs
from jaxllm.pallas_kernels.gated_delta.reference import reference_gated_delta
from jaxllm.pallas_kernels.gated_delta.xla import xla_gated_delta
from jaxllm.pallas_kernels.recurrence import LayerStates, RecurrentOperation

IMPLEMENTATIONS: Mapping[str, RecurrentOperation[GatedDeltaInputs]] = {
    "reference": reference_gated_delta,
    "xla": xla_gated_delta,
}
"""`reference` is slow and obvious, `xla` runs everywhere."""


def gated_delta(
    inputs: GatedDeltaInputs, states: LayerStates, *, platform: str = "cpu", implementation: str = "xla"
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """Linear attention whose state forgets, and corrects what it holds for a key (arXiv 2412.06464).

    For each token S = exp(decay) S; S = S + key (rate (value - S' key))'; out = S' query.

    Args:
        inputs: what the step's tokens bring.
        states: float32 [L, slots, V, H, E].
        platform: JAX's name of what is compiled for.
        implementation: a name in `IMPLEMENTATIONS`.

    Returns:
        [T, V, E] in the type of `value`, finite but meaningless for padding, and the states after this step's tokens.
        Everything is computed in float32.

    Raises:
        KeyError: no implementation of that name.
    """
    return IMPLEMENTATIONS[implementation](inputs, states, platform=platform)
