"""The gated delta rule that models call."""

from collections.abc import Mapping
from typing import Protocol

import jax

from jaxllm.pallas_kernels.gated_delta.reference import reference_gated_delta
from jaxllm.pallas_kernels.gated_delta.xla import xla_gated_delta
from jaxllm.pallas_kernels.paged_attention.ragged import RaggedBatch
from jaxllm.pallas_kernels.recurrence import StateRows


class GatedDelta(Protocol):
    """What every implementation is: `gated_delta` without the choice."""

    def __call__(
        self,
        query: jax.Array,
        key: jax.Array,
        value: jax.Array,
        decay: jax.Array,
        rate: jax.Array,
        states: jax.Array,
        layer: int | jax.Array,
        rows: StateRows,
        batch: RaggedBatch,
        *,
        platform: str = "cpu",
    ) -> tuple[jax.Array, jax.Array]:
        """See `gated_delta`."""
        ...


IMPLEMENTATIONS: Mapping[str, GatedDelta] = {"reference": reference_gated_delta, "xla": xla_gated_delta}
"""`reference` is slow and obvious, `xla` runs everywhere."""


def gated_delta(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    decay: jax.Array,
    rate: jax.Array,
    states: jax.Array,
    layer: int | jax.Array,
    rows: StateRows,
    batch: RaggedBatch,
    *,
    platform: str = "cpu",
    implementation: str = "xla",
) -> tuple[jax.Array, jax.Array]:
    """Linear attention whose state forgets, and corrects what it holds for a key (arXiv 2412.06464).

    For each token S = exp(decay) S; S = S + key (rate (value - S' key))'; out = S' query.

    Axis letters: T tokens, K key heads, V value heads, H size of keys, E of values, R rows, L layers.

    Args:
        query: [T, K, H], scaled as the model has it. Value head v has query and key head v // (V / K).
        key: [T, K, H].
        value: [T, V, E].
        decay: float32 [T, V] logarithm of what is kept, at most 0.
        rate: float32 [T, V] how much of the difference is corrected ("beta").
        states: float32 [L, slots, V, H, E] of each request; updated in place where they are donated.
        layer: which of the states are this layer's.
        rows: where those of each row lie.
        batch: which tokens are whose; its pages are not used.
        platform: JAX's name of what is compiled for.
        implementation: a name in `IMPLEMENTATIONS`.

    Returns:
        [T, V, E] in the type of `value`, finite but meaningless for padding, and the states behind this step's tokens.
        Everything is computed in float32.

    Raises:
        KeyError: no implementation of that name.
    """
    own = IMPLEMENTATIONS[implementation]
    return own(query, key, value, decay, rate, states, layer, rows, batch, platform=platform)
