"""The selective scan that models call."""

from collections.abc import Mapping

import jax

from jaxllm.pallas_kernels.recurrence import LayerStates, RecurrentOperation
from jaxllm.pallas_kernels.selective_scan.inputs import SelectiveScanInputs
from jaxllm.pallas_kernels.selective_scan.reference import reference_selective_scan
from jaxllm.pallas_kernels.selective_scan.xla import xla_selective_scan

IMPLEMENTATIONS: Mapping[str, RecurrentOperation[SelectiveScanInputs]] = {
    "reference": reference_selective_scan,
    "xla": xla_selective_scan,
}
"""`reference` is slow and obvious, `xla` runs everywhere."""


def selective_scan(
    inputs: SelectiveScanInputs, states: LayerStates, *, platform: str = "cpu", implementation: str = "xla"
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """Mamba's recurrence (arXiv 2312.00752).

    For each token S = exp(rate log_decay) S + write (rate x)'; out = S' read.

    Args:
        inputs: what the step's tokens bring.
        states: float32 [L, slots, B, D]. Channels come last, so that tiles of TPUs are full.
        platform: JAX's name of what is compiled for.
        implementation: a name in `IMPLEMENTATIONS`.

    Returns:
        float32 [T, D], finite but meaningless for padding, and the states after this step's tokens.

    Raises:
        KeyError: no implementation of that name.
    """
    return IMPLEMENTATIONS[implementation](inputs, states, platform=platform)
