"""The windows of a crop, within which some layers attend.

Axis letters: P patches, S squares, W windows.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp

from jaxllm.models.towers.crop import Crop
from jaxllm.pallas_kernels.segment_attention.segments import Segments


@dataclass(frozen=True)
class Windows:
    """An order of the squares of a crop in which those of a window are neighbours, and where each window lies then.

    `order` int32 [S] has the number of each square, `places` int32 [S] where it goes, padding last. A square has
    `patches`.
    """

    order: jax.Array
    places: jax.Array
    segments: Segments
    patches: int

    def segments_of(self, is_full: jax.Array) -> Segments:
        """The windows, or the crop as a whole in the place of the first where `is_full` (bool [])."""
        own = self.segments
        starts = jnp.where(is_full, own.starts.at[1:].set(own.num_tokens), own.starts)
        rows, count = jnp.where(is_full, 0, own.rows), jnp.where(is_full, 1, own.num_rows)
        return Segments(starts, rows, own.num_tokens, count)

    @classmethod
    def of(cls, crop: Crop, merge: int, side: int) -> "Windows":
        """Windows of `side` squares each way, each of `merge` patches each way; the last ones are cut."""
        patches = merge * merge
        squares = crop.places[::patches] // merge
        count, extent = crop.num_patches // patches, crop.size // merge
        each_way = (extent + side - 1) // side
        number = squares[:, 0] // side * each_way[1] + squares[:, 1] // side
        total = len(squares)
        # Beyond all windows: there are no more of them than squares.
        number = jnp.where(jnp.arange(total, dtype=jnp.int32) < count, number, total)
        order = jnp.argsort(number, stable=True).astype(jnp.int32)
        places = jnp.zeros(total, jnp.int32).at[order].set(jnp.arange(total, dtype=jnp.int32))
        sizes = jnp.zeros(total, jnp.int32).at[number].add(patches, mode="drop")
        starts = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(sizes, dtype=jnp.int32)])
        rows = jnp.repeat(jnp.where(number[order] < total, number[order], 0), patches)
        return cls(order, places, Segments(starts, rows, crop.num_patches, each_way[0] * each_way[1]), patches)

    def sorted(self, x: jax.Array) -> jax.Array:
        """[P, n] with the patches window by window."""
        return self._moved(x, self.order)

    def restored(self, x: jax.Array) -> jax.Array:
        """[P, n] with the patches as they were."""
        return self._moved(x, self.places)

    def _moved(self, x: jax.Array, order: jax.Array) -> jax.Array:
        return x.reshape(len(order), self.patches, -1)[order].reshape(x.shape)
