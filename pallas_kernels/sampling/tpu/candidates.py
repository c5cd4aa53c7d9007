"""The largest few logits of every group of a row: nearly always all that matters of it, in a sixteenth of the space."""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxllm.pallas_kernels.sampling.tpu.lanes import TOGETHER, Part, largest, load, store
from jaxllm.pallas_kernels.tpu_common.constants import LANES, Ref

KEPT = 4
"""Logits kept of each group."""

STEP = TOGETHER
"""Registers from one logit of a group to the next: neighbours, which are often alike, share no group."""

REGISTERS = KEPT * STEP
"""Registers of a row's candidates."""

_CARRIED = 16
"""Registers of the best so far that a loop carries."""


def find_candidates(logits: Part, few: Ref) -> tuple[jax.Array, jax.Array]:
    """Write the largest `KEPT` of each group of `logits` into `few` [B, REGISTERS * 128].

    Returns each row's maximum, and what none of those left out exceeds: [B, 128] both, alike in all lanes.
    """
    rows, trips = logits.ref.shape[0], logits.registers // STEP
    together = max(1, _CARRIED * 8 // KEPT // rows)
    unrolled = next(count for count in (4, 3, 2, 1) if trips % count == 0)
    lowest = jnp.full((rows, LANES), -jnp.inf, jnp.float32)

    def groups(index: Any, bounds: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        def insert(trip: Any, best: tuple[tuple[jax.Array, ...], ...]) -> tuple[tuple[jax.Array, ...], ...]:
            for part in range(unrolled):
                found = load(logits.ref, (trip * unrolled + part) * STEP + index * together, together)
                best = tuple(_inserted(value, kept) for value, kept in zip(found, best, strict=True))
            return best

        best = lax.fori_loop(0, trips // unrolled, insert, ((lowest,) * KEPT,) * together)
        top, rest = bounds
        for place, kept in enumerate(best):
            store(few, (index * together + place) * KEPT, kept)
            top, rest = jnp.maximum(top, kept[0]), jnp.maximum(rest, kept[-1])
        return top, rest

    top, rest = lax.fori_loop(0, STEP // together, groups, (lowest, lowest))
    return largest(top), largest(rest)


def _inserted(value: jax.Array, kept: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    """`kept`, largest first, with `value` in its place, and the least fallen out."""
    found = []
    for larger in kept:
        found.append(jnp.maximum(larger, value))
        value = jnp.minimum(larger, value)
    return tuple(found)
