"""Recurrences whose heads devices share."""

from typing import Protocol

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from jaxllm.models.cache import States
from jaxllm.models.forward_context import LayerContext
from jaxllm.models.plan import StateArray
from jaxllm.models.sharding import over_model, partition
from jaxllm.pallas_kernels.ragged_batch import RaggedBatch
from jaxllm.pallas_kernels.recurrence import LayerStates, StateRows


class Kernel(Protocol):
    """A recurrence over the tokens of some heads, such as `gated_delta`."""

    def __call__(self, arrays: tuple[jax.Array, ...], states: LayerStates, /) -> tuple[jax.Array, States]:
        """Outputs [T, heads, ...], states [L, slots, heads, ...], and inputs of drafts."""
        ...


def by_heads(
    kernel: Kernel,
    tokens: tuple[jax.Array, ...],
    states: States,
    kept: tuple[StateArray, ...],
    context: LayerContext,
    mesh: Mesh | None,
    *,
    shared: tuple[jax.Array, ...] = (),
    weights: tuple[jax.Array, ...] = (),
) -> tuple[jax.Array, States]:
    """A kernel on `tokens` [T, heads, ...], each device's on its own heads, and its arrays of states, if there are any.

    `kept` are the state, and the inputs that are kept of each draft, which follow it where there may be drafts.
    The kernel's arrays are `tokens`, then what is `shared` by all devices, then `weights` [heads, ...].
    """
    rows, layer = context.states, context.layer
    if rows is None:
        # Nothing outlives the step: its rows all begin.
        count = len(context.ragged.kv_lens)
        states = (jnp.zeros((1, count, *kept[0].shape), kept[0].dtype),)
        rows, layer = StateRows(jnp.arange(count, dtype=jnp.int32), jnp.ones(count, jnp.bool_)), 0

    def run(
        arrays: tuple[jax.Array, ...], states: States, layer: jax.Array, rows: StateRows, batch: RaggedBatch
    ) -> tuple[jax.Array, States]:
        return kernel(arrays, LayerStates(states[0], layer, rows, batch, states[1:]))

    arguments = ((*tokens, *shared, *weights), states, jnp.asarray(layer, jnp.int32), rows, context.ragged)
    if mesh is not None:
        heads, whole = partition(None, "heads"), PartitionSpec()
        held = (partition(None, None, *kept[0].axes), *(partition(None, None, None, *each.axes) for each in kept[1:]))
        held = held[: len(states)]
        specs = ((heads,) * len(tokens) + (whole,) * len(shared) + (partition("heads"),) * len(weights), held)
        run = over_model(run, mesh, (*specs, *(whole,) * 3), (heads, held))
    out, states = run(*arguments)
    return out, () if context.states is None else states
