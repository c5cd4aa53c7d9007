"""Registers of a block of rows: 8 rows and 128 tokens each. One number per row stands in all lanes: [B, 128]."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

from jaxllm.pallas_kernels.tpu_common.constants import LANES, Ref

TOGETHER = 16
"""Registers of a row that one loop body takes."""


class Part(NamedTuple):
    """The first registers of an array, a multiple of `TOGETHER`."""

    ref: Ref
    registers: int


def whole(size: int, unit: int) -> int:
    """The next multiple of a unit."""
    return -(-size // unit) * unit


def load(ref: Ref, register: Any, count: int = 1, *, rows: slice = slice(None)) -> list[jax.Array]:
    """Registers of `rows` from `register` on, [B, 128] each. They share one address, to spare the scalar unit."""
    found = ref[rows, pl.ds(_lane(register), count * LANES)]
    return [found[:, place * LANES : (place + 1) * LANES] for place in range(count)]


def store(ref: Ref, register: Any, values: Sequence[jax.Array]) -> None:
    """Write registers from `register` on."""
    ref[:, pl.ds(_lane(register), len(values) * LANES)] = jnp.concatenate(values, axis=1)


def _lane(register: Any) -> Any:
    return register * LANES if isinstance(register, int) else pl.multiple_of(register * LANES, LANES)


def lane_index(rows: int) -> jax.Array:
    """The number of each lane: int32 [B, 128]."""
    return lax.broadcasted_iota(jnp.int32, (rows, LANES), 1)


def same(values: jax.Array) -> jax.Array:
    """[B, 1] in all lanes."""
    return jnp.broadcast_to(values, (values.shape[0], LANES))


def total(values: jax.Array) -> jax.Array:
    """The sum of each row, in all lanes."""
    return same(jnp.sum(values, axis=1, keepdims=True))


def largest(values: jax.Array) -> jax.Array:
    """The maximum of each row, in all lanes."""
    return same(jnp.max(values, axis=1, keepdims=True))


def smallest(values: jax.Array) -> jax.Array:
    """The minimum of each row, in all lanes."""
    return same(jnp.min(values, axis=1, keepdims=True))


def some(flags: jax.Array) -> jax.Array:
    """Whether one of them is true: a scalar."""
    found: jax.Array = jnp.max(flags.astype(jnp.int32)) > 0
    return found


def add_up(part: Part, summand: Callable[[jax.Array], jax.Array], *, write: bool = False) -> jax.Array:
    """The sum of what `summand` makes of each register of a row, in all lanes; with `write`, it replaces them."""

    def trip(index: Any, sums: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        found = [summand(values) for values in load(part.ref, index * TOGETHER, TOGETHER)]
        if write:
            store(part.ref, index * TOGETHER, found)
        return tuple(sum(found[place :: len(sums)], start=value) for place, value in enumerate(sums))

    zero = jnp.zeros((part.ref.shape[0], LANES), jnp.float32)
    one, two, three, four = lax.fori_loop(0, part.registers // TOGETHER, trip, (zero,) * 4)
    return total((one + two) + (three + four))
