"""Drawing by the inverse of the cumulated weights: a group of blocks, then a block of 128, then the place there.

Only sums over lanes are dear, so weights are added up over the blocks of a group first.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental.pallas import tpu as pltpu

from jaxllm.pallas_kernels.sampling.tpu.lanes import TOGETHER, Part, lane_index, largest, load, smallest, store, total
from jaxllm.pallas_kernels.tpu_common.constants import LANES, SUBLANES, Ref


def draw(
    weights: Part, least: jax.Array, block_chance: jax.Array, place_chance: jax.Array, scratch: Ref
) -> tuple[jax.Array, jax.Array]:
    """Block and place of a token of each row, with probability proportional to its weight: int32 [B, 128] in all lanes.

    Weights that do not reach `least` count as zero. The chances are numbers in [0, 1). `scratch` has room for
    a register for each group of `TOGETHER`.
    """
    groups = weights.registers // TOGETHER
    _add_groups(weights, least, scratch)
    masses = [_totals(load(scratch, first, min(LANES, groups - first))) for first in range(0, groups, LANES)]
    target = block_chance * sum(total(part) for part in masses)
    group = _find_above(masses, target)
    target = target - _sum_before(masses, group)
    registers = [_kept(part, least) for part in _row_registers(weights.ref, group)]
    block = _find_above([_totals(registers)], target)
    chosen = registers[0]
    for place, part in enumerate(registers):
        chosen = jnp.where(block == place, part, chosen)
    return group * TOGETHER + block, _find_above([chosen], place_chance * total(chosen))


def _kept(weights: jax.Array, least: jax.Array) -> jax.Array:
    return jnp.where(weights >= least, weights, 0.0)


def _add_groups(weights: Part, least: jax.Array, sums: Ref) -> None:
    """Write the sum of each group of registers into a register of `sums`, lane by lane."""

    def trip(index: Any, _: None) -> None:
        parts = [_kept(part, least) for part in load(weights.ref, index * TOGETHER, TOGETHER)]
        while len(parts) > 1:
            parts = [one + other for one, other in zip(parts[::2], parts[1::2], strict=True)]
        store(sums, index, parts)

    lax.fori_loop(0, weights.registers // TOGETHER, trip, None)


def _totals(registers: list[jax.Array]) -> jax.Array:
    """The sum of each of at most 128 registers in a lane of its own, zeros after: [B, 128]."""
    lane = lane_index(registers[0].shape[0])
    found = jnp.zeros_like(registers[0])
    for place, register in enumerate(registers):
        found = jnp.where(lane == place, jnp.sum(register, axis=1, keepdims=True), found)
    return found


def _row_registers(weights: Ref, group: jax.Array) -> list[jax.Array]:
    """The registers of each row's own group: `TOGETHER` of [B, 128]."""
    row = lax.broadcasted_iota(jnp.int32, (SUBLANES, LANES), 0)
    tiles = []
    for first in range(0, weights.shape[0], SUBLANES):
        found = [jnp.zeros((SUBLANES, LANES), jnp.float32)] * TOGETHER
        for place in range(SUBLANES):
            there = load(weights, group[first + place, 0] * TOGETHER, TOGETHER, rows=slice(first, first + SUBLANES))
            found = [jnp.where(row == place, new, old) for new, old in zip(there, found, strict=True)]
        tiles.append(found)
    return [jnp.concatenate(parts, axis=0) for parts in zip(*tiles, strict=True)]


def _find_above(weights: list[jax.Array], target: jax.Array) -> jax.Array:
    """First index whose cumulated weight exceeds `target`, among positive weights, which lie side by side: int32.

    Rounding may leave nothing above the target, or make the sum grow over a weight of zero: then it is the last
    positive one, and without any the last of all.
    """
    lane, before, size = lane_index(target.shape[0]), jnp.zeros_like(target), len(weights) * LANES
    first, last = jnp.full_like(lane, size), jnp.full_like(lane, -1)
    for number, part in enumerate(weights):
        index, positive = lane + number * LANES, part > 0
        above = positive & (_prefix_sums(part) + before > target)
        first = jnp.minimum(first, jnp.where(above, index, size))
        last = jnp.maximum(last, jnp.where(positive, index, -1))
        before = before + total(part)
    first, last = smallest(first), largest(last)
    return jnp.where(first < size, first, jnp.where(last < 0, size - 1, last))


def _sum_before(weights: list[jax.Array], index: jax.Array) -> jax.Array:
    """The sum before `index`."""
    lane, found = lane_index(index.shape[0]), jnp.zeros(index.shape, jnp.float32)
    for number, part in enumerate(weights):
        found = found + total(jnp.where(lane + number * LANES < index, part, 0.0))
    return found


def _prefix_sums(values: jax.Array) -> jax.Array:
    """Sums up to and with each lane."""
    lane, shift = lane_index(values.shape[0]), 1
    while shift < LANES:
        values = values + jnp.where(lane >= shift, pltpu.roll(values, shift, 1), 0.0)
        shift *= 2
    return values
