"""The matrix memory that models call."""

from collections.abc import Mapping
from typing import Protocol

import jax

from jaxllm.pallas_kernels.matrix_memory.inputs import MatrixMemoryInputs
from jaxllm.pallas_kernels.matrix_memory.reference import reference_matrix_memory
from jaxllm.pallas_kernels.matrix_memory.xla import xla_matrix_memory
from jaxllm.pallas_kernels.recurrence import LayerStates


class MatrixMemoryOperation(Protocol):
    """The protocol of every implementation: `matrix_memory` without the choice."""

    def __call__(
        self, inputs: MatrixMemoryInputs, states: LayerStates, *, eps: float, platform: str = "cpu"
    ) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        """See `matrix_memory`."""
        ...


IMPLEMENTATIONS: Mapping[str, MatrixMemoryOperation] = {
    "reference": reference_matrix_memory,
    "xla": xla_matrix_memory,
}
"""`reference` is slow and obvious, `xla` runs everywhere."""


def matrix_memory(
    inputs: MatrixMemoryInputs,
    states: LayerStates,
    *,
    eps: float = 1e-6,
    platform: str = "cpu",
    implementation: str = "xla",
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """An mLSTM's recurrence (arXiv 2405.04517, equations 19 to 27), stabilised by the largest exponent M.

    For each token M' = max(decay + M, taken), C = exp(decay + M - M') C + exp(taken - M') key value', and the
    same for the weights n, with 1 in place of the value; out = query' C / (max(|query' n|, exp(-M')) + eps).

    Args:
        inputs: what the step's tokens bring.
        states: float32 [L, slots, N, H, E + 2]: C, then n, then M, the same for every key; zeros before any token.
        eps: added to what is divided by.
        platform: JAX's name of what is compiled for.
        implementation: a name in `IMPLEMENTATIONS`.

    Returns:
        float32 [T, N, E], finite but meaningless for padding, and the states after this step's tokens.

    Raises:
        KeyError: no implementation of that name.
    """
    return IMPLEMENTATIONS[implementation](inputs, states, eps=eps, platform=platform)
