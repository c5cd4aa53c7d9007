"""Places in a cache whose layers keep rows of several sizes: all are whole numbers of units, of a key's size.

A cache [L, P, C, U * H] has L * P pages of C * U units of H numbers. A layer has one of the equal parts of a page (see
`jaxllm.models.cache_plan`), and in it so many units for each of what it keeps there.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxllm.pallas_kernels.ragged_batch import quantise


@dataclass(frozen=True)
class Units:
    """The pages of one layer of a cache."""

    table: jax.Array
    """int32 [R, W]: for each page of a row its number times `shares`, plus that of the layer's part."""
    first: jax.Array
    """int32 []: the first unit of the layer of the cache."""
    page_units: int
    """Units of a page: C * U."""
    shares: int
    """Parts of a page."""
    size: int
    """Units of each of what the layer keeps."""

    def places(self, rows: jax.Array, column: jax.Array, slot: jax.Array) -> jax.Array:
        """The first units, int32, of what rows have in these columns of the table, in these slots of the pages."""
        found = self.table.at[rows, column].get(mode="clip")
        page, part = found // self.shares, found % self.shares
        return self.first + page * self.page_units + part * (self.page_units // self.shares) + slot * self.size


def flat(kv_cache: jax.Array, size: int) -> jax.Array:
    """A cache [L, P, C, U * H] as units [S, H]."""
    return kv_cache.reshape(-1, size)


def read_units(units: jax.Array, first: jax.Array, count: int) -> jax.Array:
    """[..., count * H]: so many of `units` [S, H] from each of `first` int32 [...] on."""
    index = first[..., None] + jnp.arange(count, dtype=jnp.int32)
    return units.at[index].get(mode="clip").reshape(*first.shape, -1)


def write_units(units: jax.Array, first: jax.Array, rows: jax.Array) -> jax.Array:
    """`units` [S, H] with `rows` [G, count * H], made finite, from `first` int32 [G] on, in place where donated.

    What begins at S or after it is dropped.
    """
    new = quantise(rows, None, units.dtype).reshape(len(first), -1, units.shape[1])
    index = first[:, None] + jnp.arange(new.shape[1], dtype=jnp.int32)
    if index.size == 1:
        # XLA would make an update slice of it, and copy the cache, see `places_of`.
        new, index = jnp.repeat(new, 2, axis=0), jnp.repeat(index, 2, axis=0)
    return units.at[index].set(new, mode="drop")
