"""Thresholds of top-k and top-p, found among a row's candidates, or in all of it where these do not suffice."""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxllm.pallas_kernels.sampling.tpu.lanes import Part, add_up, some
from jaxllm.pallas_kernels.sampling.tpu.search import Bounds, float_of, order_of, search_count, search_mass


def top_k_threshold(logits: Part, few: Part, top_k: jax.Array, maximum: jax.Array, rest: jax.Array) -> jax.Array:
    """The `top_k`-th largest logit of each row, or a lower one that as many reach; -inf for a `top_k` of 0.

    `few` has all logits above `rest`. Arguments and result are float32 [B, 128], alike in all lanes.
    """

    def above(part: Part, order: jax.Array) -> jax.Array:
        least = float_of(order)
        return add_up(part, lambda values: jnp.where(values >= least, 1.0, 0.0))

    limited = top_k > 0
    top = order_of(maximum) + 1, jnp.zeros_like(top_k)
    middle = order_of(rest) + 1
    between = middle, above(few, middle)
    enough = limited & (between[1] >= top_k)
    found = search_count(lambda order: above(few, order), top_k, _bounds(between, top), enough)
    left = limited & ~enough

    def search_all() -> jax.Array:
        low = order_of(jnp.full_like(maximum, float(np.finfo(np.float32).min)))
        bounds = _bounds((low, above(logits, low)), between)
        more = left & (bounds.above_low > top_k)
        return jnp.where(left, search_count(lambda order: above(logits, order), top_k, bounds, more), found)

    found = lax.cond(some(left), search_all, lambda: found)
    return jnp.where(limited, float_of(found), -jnp.inf)


def top_p_threshold(
    weights: Part,
    few: Part,
    top_p: jax.Array,
    mass: jax.Array,
    weigh: Callable[[jax.Array], jax.Array],
    rest: jax.Array,
    size: int,
) -> jax.Array:
    """The largest threshold above which the weights of each row still make up `top_p` of their `mass`.

    `few` has the logits of all weights above `rest`, of `size` in a row; `weigh` makes weights of them, which replace
    them. Arrays are float32 [B, 128], alike in all lanes; the result is 0 where `top_p` is 1.
    """

    def above(part: Part, order: jax.Array) -> jax.Array:
        least = float_of(order)
        return add_up(part, lambda values: jnp.where(values >= least, values, 0.0))

    add_up(few, weigh, write=True)
    limited, target = top_p < 1, top_p * mass
    # Were all weights below this together, they would still not make up 1 - top_p.
    low = order_of(jnp.where(limited, (1.0 - top_p) * mass / (2 * size), 0.0))
    middle = jnp.maximum(low, order_of(rest) + 1)
    between = middle, above(few, middle)
    top = order_of(jnp.ones_like(mass)) + 1, jnp.zeros_like(mass)
    enough = limited & (between[1] >= target)
    found = search_mass(lambda order: above(few, order), target, _bounds(between, top), enough)
    left = limited & ~enough

    def search_all() -> jax.Array:
        bounds = _bounds((low, mass), between)
        return jnp.where(left, search_mass(lambda order: above(weights, order), target, bounds, left), found)

    found = lax.cond(some(left), search_all, lambda: found)
    return jnp.where(limited, float_of(found), 0.0)


def _bounds(low: tuple[jax.Array, jax.Array], high: tuple[jax.Array, jax.Array]) -> Bounds:
    """The bounds of two thresholds and of the mass from each on."""
    return Bounds(low[0], high[0], low[1], high[1])
