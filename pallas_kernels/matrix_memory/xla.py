"""The matrix memory in plain XLA operations: in a chunk of tokens, attention with weights of both gates."""

from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxllm.pallas_kernels.matrix_memory.inputs import MatrixMemoryInputs
from jaxllm.pallas_kernels.recurrence import LayerStates
from jaxllm.pallas_kernels.recurrence.run import run_rows

_einsum = partial(jnp.einsum, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32)


class _Tokens(NamedTuple):
    """Inputs of tokens; both gates are float32."""

    query: jax.Array
    key: jax.Array
    value: jax.Array
    taken: jax.Array
    decay: jax.Array

    def wide(self) -> "_Tokens":
        """All in float32, values with a 1 after them, whose sum is that of weights."""
        value = self.value.astype(jnp.float32)
        value = jnp.concatenate([value, jnp.ones_like(value[..., :1])], axis=-1)
        return self._replace(query=self.query.astype(jnp.float32), key=self.key.astype(jnp.float32), value=value)


@dataclass(frozen=True)
class _MatrixMemory:
    eps: float

    def kept(self, inputs: _Tokens) -> tuple[jax.Array, ...]:
        """See `Recurrence`."""
        return inputs[1:]

    def restored(self, kept: tuple[jax.Array, ...]) -> _Tokens:
        """See `Recurrence`."""
        return _Tokens(kept[0], *kept)

    def step(self, inputs: _Tokens, states: jax.Array) -> tuple[jax.Array, jax.Array]:
        """See `Recurrence`."""
        wide = inputs.wide()
        if len(states) > 1:
            return jax.vmap(self._token)(wide, states)
        # See `selective_scan`: without an axis of one element.
        out, state = self._token(jax.tree.map(lambda each: each[0], wide), states[0])
        return out[None], state[None]

    def _token(self, inputs: _Tokens, state: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Output [N, E] and state [N, H, E + 2] of one token, whose inputs have no token axis."""
        query, key, value, taken, decay = inputs
        before = decay + state[:, 0, -1]
        top = jnp.maximum(before, taken)
        kept, added = jnp.exp(before - top)[:, None], jnp.exp(taken - top)[:, None]
        # As wide as the state, so that compilers make one loop of it wherever it is.
        value = jnp.pad(value, ((0, 0), (0, 1)))
        # The state is read once for both, and once more to be written.
        seen = _einsum("nhe,nh->ne", state, query)
        read = seen * kept + value * (added * (query * key).sum(axis=-1, keepdims=True))
        held = state * kept[..., None] + (key * added)[..., None] * value[:, None]
        is_top = jnp.arange(state.shape[-1], dtype=jnp.int32) == state.shape[-1] - 1
        return self._divided(read[:, :-1], top), jnp.where(is_top, top[:, None, None], held)

    def chunk(self, inputs: _Tokens, state: jax.Array, length: jax.Array) -> tuple[jax.Array, jax.Array]:
        """See `Recurrence`."""
        # Heads first, then tokens.
        query, key, value, taken, decay = (jnp.moveaxis(each, 0, 1) for each in inputs.wide())
        number = jnp.arange(taken.shape[1], dtype=jnp.int32)
        # What is no token is neither taken in, nor forgets anything.
        is_token = number < length
        taken, decay = jnp.where(is_token, taken, -jnp.inf), jnp.where(is_token, decay, 0.0)
        total = jnp.cumsum(decay, axis=1)
        exponents = total[:, :, None] - total[:, None] + taken[:, None]
        exponents = jnp.where(number[:, None] >= number, exponents, -jnp.inf)
        before = total + state[:, :1, -1]
        top = jnp.maximum(before, exponents.max(axis=2))
        scores = _einsum("nih,njh->nij", query, key) * jnp.exp(exponents - top[:, :, None])
        old = _einsum("nih,nhe->nie", query, state[..., :-1]) * jnp.exp(before - top)[:, :, None]
        read = old + _einsum("nij,nje->nie", scores, value)
        weights = jnp.exp(exponents[:, -1] - top[:, -1:])[:, :, None]
        last = jnp.exp(before[:, -1] - top[:, -1])[:, None, None]
        held = last * state[..., :-1] + _einsum("njh,nje->nhe", key * weights, value)
        return jnp.moveaxis(self._divided(read, top), 1, 0), _with(held, top[:, -1])

    def _divided(self, read: jax.Array, top: jax.Array) -> jax.Array:
        """What is read [..., E], of [..., E + 1] with the sum of weights, where `top` [...] are largest exponents."""
        divisor = jnp.maximum(jnp.abs(read[..., -1]), jnp.exp(-top)) + self.eps
        # Multiply by the reciprocal; XLA may or may not rewrite a division.
        return read[..., :-1] * (1.0 / divisor)[..., None]


def _with(held: jax.Array, top: jax.Array) -> jax.Array:
    """A state [..., H, E + 2] from sums [..., H, E + 1] and the largest exponent [...]."""
    tops = jnp.broadcast_to(top[..., None, None], (*held.shape[:-1], 1))
    return jnp.concatenate([held, tops], axis=-1)


def xla_matrix_memory(
    inputs: MatrixMemoryInputs, states: LayerStates, *, eps: float, platform: str = "cpu"
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """See `matrix_memory`."""
    out = jax.ShapeDtypeStruct(inputs.value.shape, jnp.float32)
    return run_rows(_MatrixMemory(eps), _Tokens(*inputs), out, states, platform=platform)
