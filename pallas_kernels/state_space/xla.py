"""State spaces in plain XLA operations: in a chunk of tokens, attention with decays (arXiv 2405.21060, section 6)."""

from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxllm.pallas_kernels.recurrence import LayerStates
from jaxllm.pallas_kernels.recurrence.run import run_rows
from jaxllm.pallas_kernels.state_space.inputs import StateSpaceInputs

_einsum = partial(jnp.einsum, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32)


class _Tokens(NamedTuple):
    """Inputs of tokens, float32 but for B and C: written [T, G, N / G, H], log decays [T, G, N / G], B and C."""

    written: jax.Array
    decay: jax.Array
    write: jax.Array
    read: jax.Array


class _StateSpace:
    def kept(self, inputs: _Tokens) -> tuple[jax.Array, ...]:
        """See `Recurrence`. Heads have one axis in them."""
        count, size = len(inputs.decay), inputs.written.shape[-1]
        return inputs.written.reshape(count, -1, size), inputs.decay.reshape(count, -1), inputs.write

    def restored(self, kept: tuple[jax.Array, ...]) -> _Tokens:
        """See `Recurrence`."""
        written, decay, write = kept
        groups = write.shape[:2]
        return _Tokens(written.reshape(*groups, -1, written.shape[-1]), decay.reshape(*groups, -1), write, write)

    def step(self, inputs: _Tokens, states: jax.Array) -> tuple[jax.Array, jax.Array]:
        """See `Recurrence`."""
        written, decay, write, read = (each.astype(jnp.float32) for each in inputs)
        held = states.reshape(*written.shape, states.shape[-1])
        kept = jnp.exp(decay)[..., None]
        seen = _einsum("bgnhs,bgs->bgnh", held, read) * kept
        out = seen + written * (write * read).sum(axis=-1)[:, :, None, None]
        held = held * kept[..., None] + written[..., None] * write[:, :, None, None]
        return out.reshape(*states.shape[:-1]), held.reshape(states.shape)

    def chunk(self, inputs: _Tokens, state: jax.Array, length: jax.Array) -> tuple[jax.Array, jax.Array]:
        """See `Recurrence`."""
        # Groups first, heads, then tokens.
        written = jnp.moveaxis(inputs.written, 0, 2)
        decay = jnp.moveaxis(inputs.decay, 0, 2)
        write, read = (jnp.moveaxis(each, 0, 1).astype(jnp.float32) for each in (inputs.write, inputs.read))
        size = decay.shape[-1]
        number = jnp.arange(size, dtype=jnp.int32)
        is_token = number < length
        # Without decay, and with nothing written, a token changes nothing.
        total = jnp.cumsum(jnp.where(is_token, decay, 0.0), axis=-1)
        written = jnp.where(is_token[:, None], written, 0.0)
        is_seen = number[:, None] >= number
        between = jnp.exp(jnp.where(is_seen, total[..., :, None] - total[..., None, :], -jnp.inf))
        scores = _einsum("gis,gjs->gij", read, write)[:, None] * between
        held = state.reshape(*written.shape[:2], *state.shape[1:])
        seen = _einsum("gnhs,gis->gnih", held, read) * jnp.exp(total)[..., None]
        out = seen + _einsum("gnij,gnjh->gnih", scores, written)
        to_end = jnp.exp(total[..., -1:] - total)[..., None]
        held = held * jnp.exp(total[..., -1])[..., None, None] + _einsum("gnjh,gjs->gnhs", written * to_end, write)
        return jnp.moveaxis(out, 2, 0).reshape(size, *state.shape[:2]), held.reshape(state.shape)


def xla_state_space(
    inputs: StateSpaceInputs, states: LayerStates, *, platform: str = "cpu"
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """See `state_space`."""
    x, rate, decay, write, read = inputs
    tokens, heads, size = x.shape
    groups = write.shape[1]
    written = (x.astype(jnp.float32) * rate[..., None]).reshape(tokens, groups, heads // groups, size)
    grouped = _Tokens(written, decay.reshape(written.shape[:3]), write, read)
    out = jax.ShapeDtypeStruct(x.shape, jnp.float32)
    return run_rows(_StateSpace(), grouped, out, states, platform=platform)
