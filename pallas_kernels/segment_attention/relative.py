"""Scores by the distance of query and key, as disentangled attention has them (DeBERTa, arXiv 2006.03654)."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class RelativeScores:
    """The term added to the product of a query and a key, before both are scaled.

    For a query at position p and a key at position s it is `by_query` of the query and `by_key` of the key, each in
    bucket `buckets[p - s + D]`. Distances beyond +-D count as these.
    """

    by_query: jax.Array | None
    """[T, N, B], None for nothing."""
    by_key: jax.Array | None
    """[T, N, B], None for nothing."""
    buckets: jax.Array
    """int32 [2 * D + 1]"""

    def bucket(self, distance: jax.Array) -> jax.Array:
        """Buckets of distances, int32 of any shape."""
        reach = (len(self.buckets) - 1) // 2
        return self.buckets[jnp.clip(distance, -reach, reach) + reach]


def scores_by_distance(by_query: jax.Array | None, by_key: jax.Array | None, bucket: jax.Array) -> jax.Array:
    """[N, Q, S] float32, of queries [N, Q, B] and keys [N, S, B], where `bucket` int32 [Q, S] is that of each pair."""
    total = jnp.zeros((), jnp.float32)
    if by_query is not None:
        total = total + jnp.take_along_axis(by_query, bucket[None], axis=2).astype(jnp.float32)
    if by_key is not None:
        total = total + jnp.take_along_axis(by_key, bucket.T[None], axis=2).transpose(0, 2, 1).astype(jnp.float32)
    return total
