"""KV heads that are narrower than a row of 128 lanes of a TPU share it, side by side, as one wide head.

Two KV heads of 64 are one of 128. Queries of either are zero in the lanes of the other, so that their products with the
keys of both are exactly their own scores. These weigh the values of both, and a head's own lanes are the result. To pad
each head to a row would take twice the memory and bandwidth, and as many products.

XLA would move what is selected or joined here in the shape in which the kernels take it, where a tile has one or two
rows in place of eight. Optimization barriers keep the two apart.
"""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from jaxllm.pallas_kernels.tpu_common.constants import LANES


@dataclass(frozen=True)
class SharedRows:
    """How K KV heads of size H, each with a group of G query heads, become K' wide ones: R to a row."""

    num_kv_heads: int
    group: int
    head_size: int

    @property
    def per_row(self) -> int:
        """R, at least 1."""
        return max(1, min(LANES // self.head_size, self.num_kv_heads))

    @property
    def rows(self) -> int:
        """K'; the last one is not full where K is no multiple of R."""
        return -(-self.num_kv_heads // self.per_row)

    @property
    def wide_group(self) -> int:
        """R * G, query heads of a wide head."""
        return self.per_row * self.group

    @property
    def wide_size(self) -> int:
        """R * H."""
        return self.per_row * self.head_size

    @property
    def lanes(self) -> int:
        """R * H rounded up to whole rows."""
        return -(-self.wide_size // LANES) * LANES

    def join(self, heads: jax.Array) -> jax.Array:
        """Keys or values [..., K, H] as [..., K', R * H]."""
        if self.per_row == 1:
            return heads
        wide = _pad(heads, -2, self.rows * self.per_row).reshape(*heads.shape[:-2], self.rows, self.wide_size)
        return lax.optimization_barrier(wide)

    def part(self, wide: jax.Array) -> jax.Array:
        """The inverse of `join`."""
        heads = wide.reshape(*wide.shape[:-2], self.rows * self.per_row, self.head_size)
        return heads[..., : self.num_kv_heads, :]

    def spread(self, q: jax.Array) -> jax.Array:
        """Queries [T, N, H] as [T, K' * R * G, R * H]: each in the lanes of its KV head, alongside zeros."""
        if self.per_row == 1:
            return q
        wide = jnp.concatenate([self.pad_queries(q, axis=1)] * self.per_row, axis=2)
        lanes = np.arange(self.wide_size) // self.head_size
        return lax.optimization_barrier(jnp.where(lanes == self._places[:, None], wide, 0))

    def own(self, wide: jax.Array) -> jax.Array:
        """Results [T, N, H] of those of the wide heads [T, K' * R * G, R * H]: the lanes of each head's values."""
        if self.per_row == 1:
            return wide
        # With tokens last, the parts of a head are whole tiles.
        size, wide = self.head_size, lax.optimization_barrier(wide.transpose(1, 2, 0))
        heads = wide[:, :size]
        for i in range(1, self.per_row):
            heads = jnp.where((self._places == i)[:, None, None], wide[:, i * size : (i + 1) * size], heads)
        return heads[: self.num_kv_heads * self.group].transpose(2, 0, 1)

    def pad_queries(self, per_head: jax.Array, axis: int) -> jax.Array:
        """Something of each query head along `axis`, with zeros for those of a KV head that is not there."""
        return _pad(per_head, axis, self.rows * self.wide_group)

    def join_pages(self, cache: jax.Array) -> jax.Array:
        """A canonical cache [L, P, C, 2K, H] as [L, P, C, 2K', R * H], for tests and tools."""
        both = cache.reshape(*cache.shape[:3], self.num_kv_heads, 2, self.head_size)
        both = self.join(both.swapaxes(3, 4)).swapaxes(3, 4)
        return both.reshape(*cache.shape[:3], 2 * self.rows, self.wide_size)

    def part_pages(self, wide: jax.Array) -> jax.Array:
        """The inverse of `join_pages`."""
        both = wide.reshape(*wide.shape[:3], self.rows, 2, self.wide_size)
        both = self.part(both.swapaxes(3, 4)).swapaxes(3, 4)
        return both.reshape(*wide.shape[:3], 2 * self.num_kv_heads, self.head_size)

    @property
    def _places(self) -> np.ndarray:
        """Which of the KV heads in its row each query head belongs to."""
        return np.arange(self.rows * self.wide_group) // self.group % self.per_row


def _pad(x: jax.Array, axis: int, size: int) -> jax.Array:
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, size - x.shape[axis])
    return jnp.pad(x, widths) if size > x.shape[axis] else x
