"""The weighted mean in plain XLA operations."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxllm.pallas_kernels.recurrence import LayerStates
from jaxllm.pallas_kernels.recurrence.run import run_rows
from jaxllm.pallas_kernels.weighted_mean.inputs import NOTHING, WeightedMeanInputs, mean_of, state_after


class _Tokens(NamedTuple):
    """Keys and values of tokens, float32 [T, D]."""

    key: jax.Array
    value: jax.Array


class _Run(NamedTuple):
    """Runs of tokens [C, D]: what is added to exponents before them; sums of values and weights, largest exponent."""

    decay: jax.Array
    total: jax.Array
    weight: jax.Array
    largest: jax.Array


@dataclass(frozen=True)
class _WeightedMean:
    decay: jax.Array
    """float32 [D], and so is the bonus."""
    bonus: jax.Array

    def kept(self, inputs: _Tokens) -> tuple[jax.Array, ...]:
        """See `Recurrence`."""
        return inputs

    def restored(self, kept: tuple[jax.Array, ...]) -> _Tokens:
        """See `Recurrence`."""
        return _Tokens(*kept)

    def step(self, inputs: _Tokens, states: jax.Array) -> tuple[jax.Array, jax.Array]:
        """See `Recurrence`."""
        key, value = inputs
        return mean_of(states, key, value, self.bonus), state_after(states, key, value, self.decay)

    def chunk(self, inputs: _Tokens, state: jax.Array, length: jax.Array) -> tuple[jax.Array, jax.Array]:
        """See `Recurrence`. Tokens are joined in pairs, pairs of pairs, and so on."""
        is_token = (jnp.arange(len(inputs.key), dtype=jnp.int32) < length)[:, None]
        weight = is_token.astype(jnp.float32) * jnp.ones_like(inputs.key)
        # What is no token changes nothing.
        own = _Run(weight * self.decay, weight * inputs.value, weight, jnp.where(is_token, inputs.key, NOTHING))
        first = _Run(jnp.zeros_like(state[0]), state[0], state[1], jnp.where(state[1] == 0, NOTHING, state[2]))
        after_first = jax.tree.map(lambda one, others: jnp.concatenate([one[None], others]), first, own)
        runs = lax.associative_scan(_joined, after_first)
        states = jnp.stack([runs.total, runs.weight, runs.largest], axis=1)
        return mean_of(states[:-1], inputs.key, inputs.value, self.bonus), states[-1]


def _joined(first: _Run, second: _Run) -> _Run:
    """Two runs of tokens, one after the other."""
    before = first.largest + second.decay
    top = jnp.maximum(before, second.largest)
    old, new = jnp.exp(before - top), jnp.exp(second.largest - top)
    total, weight = old * first.total + new * second.total, old * first.weight + new * second.weight
    return _Run(first.decay + second.decay, total, weight, top)


def xla_weighted_mean(
    inputs: WeightedMeanInputs, states: LayerStates, *, platform: str = "cpu"
) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    """See `weighted_mean`."""
    tokens = _Tokens(inputs.key.astype(jnp.float32), inputs.value.astype(jnp.float32))
    out = jax.ShapeDtypeStruct(tokens.key.shape, jnp.float32)
    return run_rows(_WeightedMean(inputs.log_decay, inputs.bonus), tokens, out, states, platform=platform)
