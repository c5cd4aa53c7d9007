"""Cutting off unlikely tokens (top-k, top-p, min-p) without sorting the vocabulary.

Every filter keeps the tokens at or above a threshold, so each comes down to one number per row. It is found by search:
each trip counts (or adds up) what lies at or above a guess, one pass over [R, V], and the loop ends when every row has
isolated its threshold. Tokens that tie with the last one kept are kept too.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

from jaxllm.pallas_kernels.sampling.choice import Choice
from jaxllm.pallas_kernels.sampling.vocabulary import WHOLE, Vocabulary

_VALUE_TRIPS = 24
"""Trips of the top-k search that halve the interval of values; later ones halve the count of floats inside it."""

_ONE_BITS = 0x3F800000
"""The bits of 1.0."""

_SUBNORMALS = 0x7FFFFF
"""Number of positive subnormal floats."""


def softmax_weights(logits: Array, maximum: Array, temperature: Array) -> Array:
    """exp((logits - maximum) / temperature) for [R, V], [R], [R]: probabilities but for a factor per row.

    The largest is 1. Rows of temperature 0 are computed at temperature 1, for nobody. Never NaN for logits without NaN.
    """
    largest = float(np.finfo(np.float32).max)
    maximum = jnp.clip(maximum, -largest, largest)[:, None]
    # Multiplied for each token, not divided: that takes less time.
    factor = (1.0 / jnp.where(temperature > 0, temperature, 1.0))[:, None]
    return jnp.exp((jnp.minimum(logits, largest) - maximum) * factor)


def filter_thresholds(
    weights: Array, logits: Array, rows: Choice, vocabulary: Vocabulary = WHOLE
) -> tuple[Array, Array]:
    """What logits, and what `weights` (both float32 [R, V]) must reach to be kept: float32 [R] both.

    Min-p, top-k and top-p cut off tokens, in this order. Top-p refers to the probabilities renormalised over what the
    other two leave. At least one token is kept.
    """
    active = rows.temperature > 0
    top_k = jnp.where(active, rows.top_k, 0)
    with jax.named_scope("top_k"):
        lowest = lax.cond(
            jnp.any(top_k > 0),
            lambda: top_k_threshold(logits, top_k, vocabulary),
            lambda: jnp.full(top_k.shape, -jnp.inf, logits.dtype),
        )
    min_p = jnp.minimum(rows.min_p, 1.0)
    weights = keep(weights, logits, (lowest, min_p))
    least = top_p_threshold(weights, jnp.where(active, rows.top_p, 1.0), vocabulary)
    return lowest, jnp.maximum(min_p, least)


def no_thresholds(num_rows: int) -> tuple[Array, Array]:
    """Those that every token reaches."""
    return jnp.full(num_rows, -jnp.inf, jnp.float32), jnp.zeros(num_rows, jnp.float32)


def keep(weights: Array, logits: Array, thresholds: tuple[Array, Array]) -> Array:
    """`weights` [R, V] with zeros for all tokens that do not reach both thresholds."""
    lowest, least = thresholds
    return jnp.where((logits >= lowest[:, None]) & (weights >= least[:, None]), weights, 0.0)


def top_k_threshold(logits: Array, top_k: Array, vocabulary: Vocabulary = WHOLE) -> Array:
    """The `top_k`-th largest value of each row, or a lower one that as many reach: float32 [R].

    `logits` float32 [R, V]; `top_k` int32 [R], 0 for no limit (the threshold then is the lowest finite value).
    """
    finite = logits > -jnp.inf
    low = vocabulary.smallest(jnp.min(jnp.where(finite, logits, jnp.inf), axis=1))
    # One float above the maximum: nothing reaches it.
    high = _float_of(_order_of(vocabulary.largest(jnp.max(logits, axis=1))) + 1)
    count = vocabulary.total(jnp.sum(finite, axis=1, dtype=jnp.int32))

    def search(state: tuple[Array, ...]) -> tuple[Array, ...]:
        trip, low, high, above_low, above_high, searching = state
        # Counts fall roughly exponentially towards the maximum.
        first, wanted, last = (jnp.log(jnp.maximum(n.astype(jnp.float32), 0.5)) for n in (above_low, top_k, above_high))
        middle = _value_between(low, high, (first - wanted) / (first - last), trip)
        count = vocabulary.total(jnp.sum(logits >= middle[:, None], axis=1, dtype=jnp.int32))
        rise, fall = searching & (count >= top_k), searching & (count < top_k)
        low, above_low = jnp.where(rise, middle, low), jnp.where(rise, count, above_low)
        high, above_high = jnp.where(fall, middle, high), jnp.where(fall, count, above_high)
        searching &= (count != top_k) & (_order_of(high) > _order_of(low) + 1)
        return trip + 1, low, high, above_low, above_high, searching

    state: tuple[Array, ...] = (jnp.int32(0), low, high, count, jnp.zeros_like(count), (top_k > 0) & (count > top_k))
    threshold: Array = lax.while_loop(lambda state: jnp.any(state[-1]), search, state)[1]
    return threshold


def top_p_threshold(weights: Array, top_p: Array, vocabulary: Vocabulary = WHOLE) -> Array:
    """The largest threshold above which the weights of each row still make up `top_p` of their sum: float32 [R].

    `weights` float32 [R, V] between 0 and 1, with 1 in every row; `top_p` float32 [R], 1 for no limit (threshold 0).
    Positive floats are ordered like their bits, so the search works on integers, which are like logarithms besides.
    """
    limited = top_p < 1
    total = vocabulary.total(jnp.sum(weights, axis=1))
    target = top_p * total
    # Were all weights below this together, they would still not make up 1 - top_p.
    start = (1.0 - top_p) * total / (2 * vocabulary.size(weights.shape[1]))
    low = lax.bitcast_convert_type(jnp.where(limited, start, 0.0), jnp.int32)

    def search(state: tuple[Array, ...]) -> tuple[Array, ...]:
        trip, low, high, mass_low, mass_high, searching = state
        middle = _order_between(low, high, (mass_low - target) / (mass_low - mass_high), trip)
        kept = jnp.where(weights >= _bits_to_float(middle)[:, None], weights, 0.0)
        mass = vocabulary.total(jnp.sum(kept, axis=1))
        rise, fall = searching & (mass >= target), searching & (mass < target)
        low, mass_low = jnp.where(rise, middle, low), jnp.where(rise, mass, mass_low)
        high, mass_high = jnp.where(fall, middle, high), jnp.where(fall, mass, mass_high)
        # What lies between the two weighs at least `low` a token: below twice that it is one token, the last one kept.
        # Half a token is left for rounding.
        searching &= (high - low > 1) & (mass_low - mass_high >= 1.5 * _bits_to_float(low))
        return trip + 1, low, high, mass_low, mass_high, searching

    high = jnp.full_like(low, _ONE_BITS + 1)
    state: tuple[Array, ...] = (jnp.int32(0), low, high, total, jnp.zeros_like(total), limited)
    return _bits_to_float(lax.while_loop(lambda state: jnp.any(state[-1]), search, state)[1])


def _bits_to_float(bits: Array) -> Array:
    value: Array = lax.bitcast_convert_type(bits, jnp.float32)
    return value


def _order_of(values: Array) -> Array:
    """Floats as int32 in the same order, subnormal ones as 0: hardware may treat them so in comparisons."""
    bits = lax.bitcast_convert_type(values, jnp.int32)
    magnitude = jnp.maximum((bits & 0x7FFFFFFF) - _SUBNORMALS, 0)
    return jnp.where(bits < 0, -magnitude, magnitude)


def _float_of(order: Array) -> Array:
    """The inverse of `_order_of`."""
    magnitude = jnp.abs(order)
    value = lax.bitcast_convert_type(jnp.where(magnitude > 0, magnitude + _SUBNORMALS, 0), jnp.float32)
    return jnp.where(order < 0, -value, value)


def _value_between(low: Array, high: Array, fraction: Array, trip: Array) -> Array:
    """A float strictly between `low` and `high`, if there is one: by value while that converges fast, then by order."""
    fraction = _usable(fraction, trip)
    by_value = low * (1 - fraction) + high * fraction
    first, last = _order_of(low), _order_of(high)
    by_order = _float_of((first >> 1) + (last >> 1) + (first & last & 1))
    return jnp.where((trip < _VALUE_TRIPS) & (low < by_value) & (by_value < high), by_value, by_order)


def _order_between(low: Array, high: Array, fraction: Array, trip: Array) -> Array:
    """An integer strictly between `low` and `high` where there is one."""
    offset = ((high - low).astype(jnp.float32) * _usable(fraction, trip)).astype(jnp.int32)
    return low + jnp.clip(offset, 1, jnp.maximum(high - low - 1, 1))


def _usable(fraction: Array, trip: Array) -> Array:
    """Interpolation guesses well but may crawl, so every other trip halves; and no guess at the very edge."""
    return jnp.where(trip % 2 == 0, jnp.clip(jnp.nan_to_num(fraction, nan=0.5), 0.02, 0.98), 0.5)
