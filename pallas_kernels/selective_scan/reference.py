"""The selective scan token by token: the oracle of the other implementations."""

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.recurrence import LayerStates
from jaxllm.pallas_kernels.recurrence.reference import reference_rows
from jaxllm.pallas_kernels.selective_scan.inputs import SelectiveScanInputs, of_channels


def reference_selective_scan(
    inputs: SelectiveScanInputs, states: LayerStates, *, platform: str = "cpu"
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """See `selective_scan`."""

    log_decay = inputs.log_decay.T

    def token(inputs: tuple[jax.Array, ...], state: jax.Array) -> tuple[jax.Array, jax.Array]:
        x, rate, write, read = inputs
        state = state * jnp.exp(rate * log_decay) + of_channels(write, len(x)) * (rate * x)
        return (state * of_channels(read, len(x))).sum(axis=0), state

    return reference_rows(token, inputs[:4], states)
