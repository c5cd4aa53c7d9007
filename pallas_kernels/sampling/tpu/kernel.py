"""The kernel: logits come to VMEM once, and leave as tokens.

A block of rows lies in VMEM as [B, V]. A row stays in its sublane of the registers, so that no row knows of another.
While one block is computed, the next is on its way.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jaxllm.pallas_kernels.sampling.tpu.candidates import REGISTERS, find_candidates
from jaxllm.pallas_kernels.sampling.tpu.draw import draw
from jaxllm.pallas_kernels.sampling.tpu.filters import top_k_threshold, top_p_threshold
from jaxllm.pallas_kernels.sampling.tpu.lanes import Part, add_up, same
from jaxllm.pallas_kernels.tpu_common.constants import LANES, Ref

_LARGEST = float(np.finfo(np.float32).max)


class Control(NamedTuple):
    """Scalars of a call, int32."""

    num_rows: Any
    """Rows from there on are not computed."""
    has_other: Any
    """Whether the logits are those of `Memory.other`."""
    any_top_k: Any
    any_top_p: Any


class Row(NamedTuple):
    """Parameters of a row, float32."""

    scale: Any
    """The inverse of the temperature, 1 for greedy rows."""
    is_greedy: Any
    top_k: Any
    top_p: Any
    min_p: Any
    block_chance: Any
    place_chance: Any


class Memory(NamedTuple):
    """References of the kernel."""

    control: Ref
    """SMEM int32 [4], see `Control`."""
    logits: Ref
    """HBM [R, V]."""
    other: Ref
    """HBM [R, V]."""
    rows: Ref
    """VMEM [R, 128]: parameters of a row, in the order of `Row`."""
    tokens: Ref
    """VMEM int32 [R, 128]: the result, in all lanes."""
    values: Ref
    """VMEM [2, B, registers * 128]: logits as they arrive, then their weights."""
    few: Ref
    """VMEM [B, REGISTERS * 128]: candidates, then their weights."""
    sums: Ref
    """VMEM [B, registers / TOGETHER * 128], for `draw`."""
    semaphores: Ref


def kernel(*references: Ref) -> None:
    """Choose the tokens of all rows; takes the fields of `Memory`."""
    memory = Memory(*references)
    rows = memory.values.shape[1]
    count = pl.cdiv(memory.control[0], rows)
    pl.when(count > 0)(lambda: _fetch(memory, 0))

    def block(index: Any, _: None) -> None:
        pl.when(index + 1 < count)(lambda: _fetch(memory, index + 1))
        _copy(memory, memory.logits, index).wait()
        place = pl.ds(pl.multiple_of(index * rows, rows), rows)
        memory.tokens[place, :] = _choose(memory, memory.values.at[index % 2], memory.rows[place, :])

    lax.fori_loop(0, count, block, None)


def _control(memory: Memory) -> Control:
    return Control(*(memory.control[place] for place in range(len(Control._fields))))


def _fetch(memory: Memory, block: Any) -> None:
    """Start the copy of a block of rows."""
    has_other = _control(memory).has_other != 0
    pl.when(has_other)(lambda: _copy(memory, memory.other, block).start())
    pl.when(jnp.logical_not(has_other))(lambda: _copy(memory, memory.logits, block).start())


def _copy(memory: Memory, source: Ref, block: Any) -> Any:
    rows, slot = memory.values.shape[1], block % 2
    place = pl.ds(pl.multiple_of(block * rows, rows), rows)
    target = memory.values.at[slot, :, : source.shape[1]]
    return pltpu.make_async_copy(source.at[place], target, memory.semaphores.at[slot])


def _choose(memory: Memory, values: Ref, parameters: jax.Array) -> jax.Array:
    """The tokens of a block: int32 [B, 128]."""
    control, size = _control(memory), memory.logits.shape[1]
    row = Row(*(same(parameters[:, place : place + 1]) for place in range(len(Row._fields))))
    logits = Part(values, values.shape[1] // LANES)
    if size < values.shape[1]:
        values[:, size:] = jnp.full((values.shape[0], values.shape[1] - size), -jnp.inf, jnp.float32)

    maximum, rest = find_candidates(logits, memory.few)
    few = Part(memory.few, REGISTERS)
    lowest = lax.cond(
        control.any_top_k != 0,
        lambda: top_k_threshold(logits, few, row.top_k, maximum, rest),
        lambda: jnp.full_like(maximum, -jnp.inf),
    )
    # A greedy row is left its largest only, and has no luck.
    lowest = jnp.where(row.is_greedy != 0, maximum, lowest)
    subtracted = jnp.clip(maximum, -_LARGEST, _LARGEST)

    def weigh(logits: jax.Array) -> jax.Array:
        weights = jnp.exp((jnp.minimum(logits, _LARGEST) - subtracted) * row.scale)
        return jnp.where((logits >= lowest) & (weights >= row.min_p), weights, 0.0)

    mass, weights = add_up(logits, weigh, write=True), logits
    least = lax.cond(
        control.any_top_p != 0,
        lambda: top_p_threshold(weights, few, row.top_p, mass, weigh, weigh(rest), size),
        lambda: jnp.zeros_like(mass),
    )
    block, place = draw(weights, least, row.block_chance, row.place_chance, memory.sums)
    return block * LANES + place
