"""The matrix memory token by token: the oracle of the other implementations."""

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.matrix_memory.inputs import MatrixMemoryInputs
from jaxllm.pallas_kernels.recurrence import LayerStates
from jaxllm.pallas_kernels.recurrence.reference import reference_rows


def reference_matrix_memory(
    inputs: MatrixMemoryInputs, states: LayerStates, *, eps: float, platform: str = "cpu"
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """See `matrix_memory`."""

    def token(inputs: tuple[jax.Array, ...], state: jax.Array) -> tuple[jax.Array, jax.Array]:
        query, key, value, taken, decay = inputs
        memory, weights, largest = state[..., :-2], state[..., -2], state[:, 0, -1]
        top = jnp.maximum(decay + largest, taken)
        kept, added = jnp.exp(decay + largest - top)[:, None], jnp.exp(taken - top)[:, None]
        memory = kept[..., None] * memory + added[..., None] * key[:, :, None] * value[:, None]
        weights = kept * weights + added * key
        read = (query[:, :, None] * memory).sum(axis=1)
        divisor = jnp.maximum(jnp.abs((query * weights).sum(axis=1)), jnp.exp(-top)) + eps
        tops = jnp.broadcast_to(top[:, None], weights.shape)
        state = jnp.concatenate([memory, weights[..., None], tops[..., None]], axis=-1)
        return read / divisor[:, None], state

    return reference_rows(token, inputs, states)
