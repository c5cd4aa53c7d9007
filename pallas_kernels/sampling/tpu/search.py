"""The search for the threshold of a row: for top-p by mass, for top-k by count."""

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from jaxllm.pallas_kernels.sampling.tpu.lanes import some

_SUBNORMALS = 0x7FFFFF
"""Number of positive subnormal floats."""


class Bounds(NamedTuple):
    """Two thresholds, int32 in the order of floats, and what lies from each of them on: [B, 128], alike in all lanes.

    From `low` on there is as much as is wanted, from `high` on less.
    """

    low: jax.Array
    high: jax.Array
    above_low: jax.Array
    above_high: jax.Array


def order_of(values: jax.Array) -> jax.Array:
    """Floats as int32 in the same order, subnormal ones as 0: hardware may treat them so in comparisons."""
    bits = lax.bitcast_convert_type(values, jnp.int32)
    magnitude = jnp.maximum((bits & 0x7FFFFFFF) - _SUBNORMALS, 0)
    return jnp.where(bits < 0, -magnitude, magnitude)


def float_of(order: jax.Array) -> jax.Array:
    """The inverse of `order_of`."""
    magnitude = jnp.abs(order)
    value = lax.bitcast_convert_type(jnp.where(magnitude > 0, magnitude + _SUBNORMALS, 0), jnp.float32)
    return jnp.where(order < 0, -value, value)


def search_mass(
    above: Callable[[jax.Array], jax.Array], target: jax.Array, bounds: Bounds, searching: jax.Array
) -> jax.Array:
    """The largest threshold above which weights between 0 and 1 make up `target`: int32 [B, 128].

    `above` says how much lies from a threshold on. Rows that are not `searching` keep the lower bound.
    """

    def guess(at: Bounds) -> jax.Array:
        # The order of floats is like a logarithm.
        fraction = (at.above_low - target) / (at.above_low - at.above_high)
        return at.low + ((at.high - at.low).astype(jnp.float32) * _usable(fraction)).astype(jnp.int32)

    # What lies between the two weighs at least `low` a token: below twice that it is one token, the last one kept.
    # Half a token is left for rounding.
    return _search(above, guess, target, bounds, searching, lambda at: 1.5 * float_of(at.low))


def search_count(
    above: Callable[[jax.Array], jax.Array], target: jax.Array, bounds: Bounds, searching: jax.Array
) -> jax.Array:
    """The largest threshold that `target` logits reach, or a lower one that as many reach: int32 [B, 128]."""

    def guess(at: Bounds) -> jax.Array:
        # Counts fall roughly exponentially towards the maximum.
        first, wanted, last = (jnp.log(jnp.maximum(n, 0.5)) for n in (at.above_low, target, at.above_high))
        fraction = _usable((first - wanted) / (first - last))
        return order_of(float_of(at.low) * (1 - fraction) + float_of(at.high) * fraction)

    # Where as many as are wanted reach the lower one, nothing is to be gained.
    return _search(above, guess, target, bounds, searching, lambda at: jnp.where(at.above_low > target, 0.0, jnp.inf))


def _search(
    above: Callable[[jax.Array], jax.Array],
    guess: Callable[[Bounds], jax.Array],
    target: jax.Array,
    bounds: Bounds,
    searching: jax.Array,
    close: Callable[[Bounds], jax.Array],
) -> jax.Array:
    """Narrow the bounds until there is at most one float between them, or less than `close` says."""

    def trip(at: Bounds, searching: jax.Array, middle: jax.Array) -> tuple[Bounds, jax.Array]:
        middle = jnp.clip(middle, at.low + 1, at.high - 1)
        found = above(middle)
        rise, fall = searching & (found >= target), searching & (found < target)
        low, above_low = jnp.where(rise, middle, at.low), jnp.where(rise, found, at.above_low)
        high, above_high = jnp.where(fall, middle, at.high), jnp.where(fall, found, at.above_high)
        at = Bounds(low, high, above_low, above_high)
        return at, searching & (low + 1 < high) & (above_low - above_high >= close(at))

    def trips(state: tuple[Bounds, jax.Array]) -> tuple[Bounds, jax.Array]:
        at, searching = state[0], state[1] != 0
        # Interpolation guesses well but may crawl, so every other trip halves. One question for both: asking a vector
        # takes as long as a trip.
        at, searching = trip(at, searching, guess(at))
        at, searching = trip(at, searching, (at.low >> 1) + (at.high >> 1) + (at.low & at.high & 1))
        return at, searching.astype(jnp.int32)

    start = (bounds, (searching & (bounds.low + 1 < bounds.high)).astype(jnp.int32))
    (low, *_), _ = lax.while_loop(lambda state: some(state[1]), trips, start)
    return low


def _usable(fraction: jax.Array) -> jax.Array:
    """No guess at the very edge."""
    return jnp.clip(jnp.where(jnp.isnan(fraction), 0.5, fraction), 0.02, 0.98)
