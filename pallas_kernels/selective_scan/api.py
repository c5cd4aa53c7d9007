"""The selective scan that models call."""

from collections.abc import Mapping
from typing import Protocol

import jax

from jaxllm.pallas_kernels.paged_attention.ragged import RaggedBatch
from jaxllm.pallas_kernels.recurrence import StateRows
from jaxllm.pallas_kernels.selective_scan.reference import reference_selective_scan
from jaxllm.pallas_kernels.selective_scan.xla import xla_selective_scan


class SelectiveScan(Protocol):
    """What every implementation is: `selective_scan` without the choice."""

    def __call__(
        self,
        x: jax.Array,
        rate: jax.Array,
        write: jax.Array,
        read: jax.Array,
        log_decay: jax.Array,
        states: jax.Array,
        layer: int | jax.Array,
        rows: StateRows,
        batch: RaggedBatch,
        *,
        platform: str = "cpu",
    ) -> tuple[jax.Array, jax.Array]:
        """See `selective_scan`."""
        ...


IMPLEMENTATIONS: Mapping[str, SelectiveScan] = {"reference": reference_selective_scan, "xla": xla_selective_scan}
"""`reference` is slow and obvious, `xla` runs everywhere."""


def selective_scan(
    x: jax.Array,
    rate: jax.Array,
    write: jax.Array,
    read: jax.Array,
    log_decay: jax.Array,
    states: jax.Array,
    layer: int | jax.Array,
    rows: StateRows,
    batch: RaggedBatch,
    *,
    platform: str = "cpu",
    implementation: str = "xla",
) -> tuple[jax.Array, jax.Array]:
    """Mamba's recurrence (arXiv 2312.00752).

    For each token S = exp(rate log_decay) S + write (rate x)'; out = S' read.

    Axis letters: T tokens, D channels, B size of the state, L layers.

    Args:
        x: [T, D].
        rate: float32 [T, D] the step size ("dt").
        write: [T, B] ("B").
        read: [T, B] ("C").
        log_decay: float32 [D, B], at most 0 ("A").
        states: float32 [L, slots, B, D] of each request; updated in place where they are donated. Channels come last,
            so that tiles of TPUs are full.
        layer: which of the states are this layer's.
        rows: where those of each row lie.
        batch: which tokens are whose; its pages are not used.
        platform: JAX's name of what is compiled for.
        implementation: a name in `IMPLEMENTATIONS`.

    Returns:
        float32 [T, D], finite but meaningless for padding, and the states behind this step's tokens.

    Raises:
        KeyError: no implementation of that name.
    """
    own = IMPLEMENTATIONS[implementation]
    return own(x, rate, write, read, log_decay, states, layer, rows, batch, platform=platform)
