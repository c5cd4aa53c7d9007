"""Cases of the gated delta rule, which every implementation is held to."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxllm.pallas_kernels.gated_delta.api import gated_delta
from jaxllm.pallas_kernels.gated_delta.inputs import GatedDeltaInputs
from jaxllm.pallas_kernels.recurrence import LayerStates
from jaxllm.pallas_kernels.recurrence.cases import MIXED, PROMPT, ROWS, RowsCase, make_rows


@dataclass(frozen=True)
class Case:
    """Rows, and the numbers and sizes of heads; with `repeated`, all keys are equal and nothing is forgotten."""

    rows: RowsCase
    key_heads: int = 2
    value_heads: int = 4
    key_size: int = 8
    value_size: int = 6
    dtype: str = "float32"
    repeated: bool = False
    by_channel: bool = False
    """Whether each element of a key has a decay of its own."""

    @property
    def name(self) -> str:
        """Name of the rows, and of other special features."""
        special = {"repeated": self.repeated, "by_channel": self.by_channel}
        return "-".join((self.rows.name, self.dtype, *(name for name, has in special.items() if has)))


CASES: tuple[Case, ...] = (
    *(Case(rows) for rows in ROWS),
    Case(PROMPT, repeated=True),
    Case(MIXED, dtype="bfloat16"),
    Case(PROMPT, by_channel=True),
    Case(MIXED, by_channel=True),
)
"""Equal keys are the worst case of the equations of a chunk."""


class Inputs(NamedTuple):
    """The arrays of a case, as `gated_delta` takes them."""

    tokens: GatedDeltaInputs
    states: LayerStates

    def call(self, implementation: str) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        """Outputs and states."""
        return gated_delta(self.tokens, self.states, implementation=implementation)


def make_inputs(case: Case) -> Inputs:
    """Random arrays with keys and queries of length 1, and states of two layers; the second one counts."""
    rng = np.random.default_rng(0)
    count = case.rows.tokens

    def random(*shape: int) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape, np.float32))

    def unit(*shape: int) -> jax.Array:
        values = random(*shape)
        return (values / jnp.linalg.norm(values, axis=-1, keepdims=True)).astype(case.dtype)

    key = unit(count, case.key_heads, case.key_size)
    channels = (case.key_size,) if case.by_channel else ()
    # Some elements forget nearly all.
    decay = -jnp.abs(random(count, case.value_heads, *channels)) * (8.0 if case.by_channel else 1.0)
    rate = jax.nn.sigmoid(random(count, case.value_heads))
    if case.repeated:
        key, decay, rate = jnp.broadcast_to(key[:1], key.shape), jnp.zeros_like(decay), jnp.ones_like(rate)
    value = random(count, case.value_heads, case.value_size).astype(case.dtype)
    states = random(2, case.rows.num_slots, case.value_heads, case.key_size, case.value_size)
    tokens = GatedDeltaInputs(unit(*key.shape), key, value, decay, rate)
    return Inputs(tokens, LayerStates(states, jnp.int32(1), *make_rows(case.rows)))
