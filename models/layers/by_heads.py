"""Recurrences whose heads devices share."""

from typing import Any, Protocol

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

from jaxllm.models.cache import States
from jaxllm.models.forward_context import LayerContext
from jaxllm.models.plan import StateArray
from jaxllm.models.sharding import over_model, partition
from jaxllm.pallas_kernels.recurrence import LayerStates, StateRows


class Kernel(Protocol):
    """A recurrence over the tokens of some heads, such as `gated_delta`."""

    def __call__(self, arrays: tuple[jax.Array, ...], states: LayerStates, /) -> tuple[jax.Array, jax.Array]:
        """Outputs [T, heads, ...] and states [L, slots, heads, ...]."""
        ...


def by_heads(
    kernel: Kernel,
    tokens: tuple[jax.Array, ...],
    states: States,
    kept: StateArray,
    context: LayerContext,
    mesh: Mesh | None,
    *,
    shared: tuple[jax.Array, ...] = (),
    weights: tuple[jax.Array, ...] = (),
) -> tuple[jax.Array, States]:
    """A kernel on `tokens` [T, heads, ...], each device's on its own heads, and its array of states, if there is one.

    The kernel's arrays are `tokens`, then what is `shared` by all devices, then `weights` [heads, ...].
    """
    rows, layer = context.states, context.layer
    if rows is None:
        # Nothing outlives the step: its rows all begin.
        count = len(context.ragged.kv_lens)
        state = jnp.zeros((1, count, *kept.shape), kept.dtype)
        rows, layer = StateRows(jnp.arange(count, dtype=jnp.int32), jnp.ones(count, jnp.bool_)), 0
    else:
        (state,) = states

    def run(arrays: tuple[jax.Array, ...], state: jax.Array, *rest: Any) -> tuple[jax.Array, jax.Array]:
        return kernel(arrays, LayerStates(state, *rest))

    arguments = ((*tokens, *shared, *weights), state, jnp.asarray(layer, jnp.int32), rows, context.ragged)
    if mesh is not None:
        heads, held, whole = partition(None, "heads"), partition(None, None, *kept.axes), PartitionSpec()
        specs = ((heads,) * len(tokens) + (whole,) * len(shared) + (partition("heads"),) * len(weights), held)
        run = over_model(run, mesh, (*specs, *(whole,) * 3), (heads, held))
    out, state = run(*arguments)
    return out, () if context.states is None else (state,)
