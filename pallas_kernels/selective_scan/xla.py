"""The selective scan in plain XLA operations.

Each channel decays in its own way, so that a chunk is no product of matrices: it is a loop over its tokens, which keeps
the state at hand.
"""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxllm.pallas_kernels.recurrence import LayerStates
from jaxllm.pallas_kernels.recurrence.run import run_rows
from jaxllm.pallas_kernels.selective_scan.inputs import SelectiveScanInputs, of_channels

UNROLLED = 8
"""Tokens of a chunk between two ends of the loop."""


class _Tokens(NamedTuple):
    """Inputs of tokens, float32: step sizes and what is written [T, D], B and C [T, B] or [T, N, B]."""

    rate: jax.Array
    written: jax.Array
    write: jax.Array
    read: jax.Array


@dataclass(frozen=True)
class _SelectiveScan:
    log_decay: jax.Array
    """float32 [B, D]"""

    def kept(self, inputs: _Tokens) -> tuple[jax.Array, ...]:
        """See `Recurrence`."""
        return inputs[:3]

    def restored(self, kept: tuple[jax.Array, ...]) -> _Tokens:
        """See `Recurrence`."""
        rate, written, write = kept
        return _Tokens(rate, written, write, write)

    def step(self, inputs: _Tokens, states: jax.Array) -> tuple[jax.Array, jax.Array]:
        """See `Recurrence`."""
        if len(states) > 1:
            return jax.vmap(self._token)(inputs, states)
        # XLA for CPUs makes vectors of two axes, but not of three if the first has one element.
        out, state = self._token(jax.tree.map(lambda each: each[0], inputs), states[0])
        return out[None], state[None]

    def chunk(self, inputs: _Tokens, state: jax.Array, length: jax.Array) -> tuple[jax.Array, jax.Array]:
        """See `Recurrence`."""
        is_token = (jnp.arange(len(inputs.rate), dtype=jnp.int32) < length)[:, None]
        # Without a step, a token changes nothing.
        rate, written = (jnp.where(is_token, each, 0.0) for each in (inputs.rate, inputs.written))

        def token(state: jax.Array, inputs: _Tokens) -> tuple[jax.Array, jax.Array]:
            return self._token(inputs, state)[::-1]

        state, out = lax.scan(token, state, _Tokens(rate, written, inputs.write, inputs.read), unroll=UNROLLED)
        return out, state

    def _token(self, inputs: _Tokens, state: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Output [D] and state [B, D] of one token, whose inputs have no token axis."""
        rate, written, write, read = inputs
        if write.ndim == 2:
            state = state * jnp.exp(rate * self.log_decay) + of_channels(write, len(written)) * written
            by_head = state.reshape(state.shape[0], len(read), -1)
            out = jnp.einsum("nb,bnd->nd", read, by_head, precision=lax.Precision.HIGHEST)
            return out.reshape(-1), state
        state = state * jnp.exp(rate * self.log_decay) + write[:, None] * written
        return jnp.einsum("b,bd->d", read, state, precision=lax.Precision.HIGHEST), state


def xla_selective_scan(
    inputs: SelectiveScanInputs, states: LayerStates, *, platform: str = "cpu"
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """See `selective_scan`."""
    x, rate, write, read, log_decay = inputs
    wide = (each.astype(jnp.float32) for each in (rate * x, write, read))
    tokens, out = _Tokens(rate, *wide), jax.ShapeDtypeStruct(x.shape, jnp.float32)
    return run_rows(_SelectiveScan(log_decay.T), tokens, out, states, platform=platform)
