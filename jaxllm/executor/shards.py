"""What code that runs for one data shard asks about itself; see `jaxllm.models.sharding`."""

from typing import TypeVar

import jax
import jax.numpy as jnp
from jax import Array, lax

from jaxllm.models.sharding import DATA, within_shard

Flags = TypeVar("Flags")


def local_slots(slots: Array, count: int) -> Array:
    """Which of this shard's `count` slots these `slots` of all shards are, and -1 for those of others."""
    if within_shard() is None:
        return slots
    own = slots - lax.axis_index(DATA) * count
    return jnp.where((own >= 0) & (own < count), own, -1)


def max_over_shards(values: Flags) -> Flags:
    """The largest of all shards' values, int32 or bool [] each: what decides whether, or how often, devices of all
    shards do what they must do together.
    """
    if within_shard() is None:
        return values
    leaves, tree = jax.tree.flatten(values)
    largest = lax.pmax(jnp.stack([leaf.astype(jnp.int32) for leaf in leaves]), DATA)
    return jax.tree.unflatten(tree, [each.astype(leaf.dtype) for each, leaf in zip(largest, leaves, strict=True)])
