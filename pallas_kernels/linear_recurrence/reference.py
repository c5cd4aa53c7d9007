"""The linear recurrence token by token: the oracle of the other implementations."""

import jax

from jaxllm.pallas_kernels.linear_recurrence.inputs import LinearRecurrenceInputs
from jaxllm.pallas_kernels.recurrence import LayerStates
from jaxllm.pallas_kernels.recurrence.reference import reference_rows


def reference_linear_recurrence(
    inputs: LinearRecurrenceInputs, states: LayerStates, *, platform: str = "cpu"
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """See `linear_recurrence`."""

    def token(inputs: tuple[jax.Array, ...], state: jax.Array) -> tuple[jax.Array, jax.Array]:
        decay, written = inputs
        state = decay * state + written
        return state, state

    return reference_rows(token, inputs, states)
