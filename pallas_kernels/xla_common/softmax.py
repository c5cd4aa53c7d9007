"""The online softmax of attention in blocks of keys, and what is done to scores before it."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp

MASKED = -1e30
"""Score of an invisible key. Finite, so that a block without any visible key leaves no NaN."""


class SoftmaxState(NamedTuple):
    """State of an online softmax."""

    maximum: jax.Array
    total: jax.Array
    weighted: jax.Array


@dataclass(frozen=True)
class Heads:
    """Head counts, and what is done to scores and values."""

    num_heads: int
    num_kv_heads: int
    value_size: int
    """Numbers of a value, and of a result; a key may have others."""
    scale: float | jax.Array
    """Scale of queries times stored keys."""
    soft_cap: float | None
    sinks: jax.Array | None
    alibi_slopes: jax.Array | None
    v_scale: jax.Array | None

    @property
    def group(self) -> int:
        """Query heads of a KV head."""
        return self.num_heads // self.num_kv_heads

    def scores(self, products: jax.Array, slopes: jax.Array | None, distances: jax.Array) -> jax.Array:
        """Scores from `products`; `slopes` and `distances` (key position minus query position) broadcast to them."""
        scores = products.astype(jnp.float32) * self.scale
        if self.soft_cap is not None:
            scores = self.soft_cap * jnp.tanh(scores / self.soft_cap)
        return scores if slopes is None else scores + slopes * distances.astype(jnp.float32)

    def repeat_per_query(self, per_head: jax.Array, queries: int) -> jax.Array:
        """A value per head [N] as [K, G * queries]."""
        return jnp.repeat(per_head.reshape(self.num_kv_heads, self.group), queries, axis=1)

    def start(self, sinks: jax.Array | None, shape: tuple[int, ...]) -> SoftmaxState:
        """A softmax over `shape` that has seen only the sinks, which broadcast to `shape`."""
        weighted = jnp.zeros((*shape, self.value_size), jnp.float32)
        if sinks is None:
            return SoftmaxState(jnp.full(shape, MASKED, jnp.float32), jnp.zeros(shape, jnp.float32), weighted)
        return SoftmaxState(jnp.broadcast_to(sinks, shape), jnp.ones(shape, jnp.float32), weighted)

    def finish(self, run: SoftmaxState) -> jax.Array:
        """Weighted sums of stored values as results."""
        attended = run.weighted / jnp.maximum(run.total, 1e-30)[..., None]
        return attended if self.v_scale is None else attended * self.v_scale
