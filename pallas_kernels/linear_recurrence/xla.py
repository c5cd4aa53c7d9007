"""The linear recurrence in plain XLA operations."""

import jax
import jax.numpy as jnp
from jax import lax

from jaxllm.pallas_kernels.linear_recurrence.inputs import LinearRecurrenceInputs
from jaxllm.pallas_kernels.recurrence import LayerStates
from jaxllm.pallas_kernels.recurrence.run import run_rows


class _LinearRecurrence:
    def kept(self, inputs: LinearRecurrenceInputs) -> tuple[jax.Array, ...]:
        """See `Recurrence`."""
        return inputs

    def restored(self, kept: tuple[jax.Array, ...]) -> LinearRecurrenceInputs:
        """See `Recurrence`."""
        return LinearRecurrenceInputs(*kept)

    def step(self, inputs: LinearRecurrenceInputs, states: jax.Array) -> tuple[jax.Array, jax.Array]:
        """See `Recurrence`."""
        states = inputs.decay * states + inputs.written
        return states, states

    def chunk(self, inputs: LinearRecurrenceInputs, state: jax.Array, length: jax.Array) -> tuple[jax.Array, jax.Array]:
        """See `Recurrence`. Tokens are joined in pairs, pairs of pairs, and so on."""
        is_token = (jnp.arange(len(inputs.decay), dtype=jnp.int32) < length)[:, None]
        decay, written = jnp.where(is_token, inputs.decay, 1.0), jnp.where(is_token, inputs.written, 0.0)
        kept, added = lax.associative_scan(_joined, (decay, written))
        out = kept * state + added
        return out, out[-1]


def _joined(first: tuple[jax.Array, jax.Array], second: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
    """What two runs of tokens keep and add, one after the other."""
    return first[0] * second[0], second[0] * first[1] + second[1]


def xla_linear_recurrence(
    inputs: LinearRecurrenceInputs, states: LayerStates, *, platform: str = "cpu"
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """See `linear_recurrence`."""
    tokens = LinearRecurrenceInputs(*(each.astype(jnp.float32) for each in inputs))
    out = jax.ShapeDtypeStruct(tokens.decay.shape, jnp.float32)
    return run_rows(_LinearRecurrence(), tokens, out, states, platform=platform)
