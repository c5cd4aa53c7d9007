"""The linear recurrence that models call."""

from collections.abc import Mapping

import jax

from jaxllm.pallas_kernels.linear_recurrence.inputs import LinearRecurrenceInputs
from jaxllm.pallas_kernels.linear_recurrence.reference import reference_linear_recurrence
from jaxllm.pallas_kernels.linear_recurrence.xla import xla_linear_recurrence
from jaxllm.pallas_kernels.recurrence import LayerStates, RecurrentOperation

IMPLEMENTATIONS: Mapping[str, RecurrentOperation[LinearRecurrenceInputs]] = {
    "reference": reference_linear_recurrence,
    "xla": xla_linear_recurrence,
}
"""`reference` is slow and obvious, `xla` runs everywhere."""


def linear_recurrence(
    inputs: LinearRecurrenceInputs, states: LayerStates, *, platform: str = "cpu", implementation: str = "xla"
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """The recurrence of a linear recurrent unit with real gates (arXiv 2402.19427).

    For each token S = decay S + written; out = S.

    Args:
        inputs: what the step's tokens bring.
        states: float32 [L, slots, D].
        platform: JAX's name of what is compiled for.
        implementation: a name in `IMPLEMENTATIONS`.

    Returns:
        float32 [T, D], finite but meaningless for padding, and the states after this step's tokens.

    Raises:
        KeyError: no implementation of that name.
    """
    return IMPLEMENTATIONS[implementation](inputs, states, platform=platform)
