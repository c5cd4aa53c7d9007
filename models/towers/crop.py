"""What a tower is told of the crop that it sees.

Axis letters: P patches.
"""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp
from jax.tree_util import register_dataclass

from jaxllm.models.forward_context import ForwardContext
from jaxllm.pallas_kernels.segment_attention.segments import Segments


@register_dataclass
@dataclass(frozen=True)
class Crop:
    """A crop of `size` int32 [2] patches, in height and width, at `places` int32 [P, 2]; the rest of P is padding.

    There may be more patches, which fill squares of `filled` each way at the right and below.
    """

    places: jax.Array
    size: jax.Array
    filled: int = field(default=1, metadata={"static": True})

    @property
    def num_patches(self) -> jax.Array:
        """int32 []: patches that are not padding."""
        whole = -(-self.size // self.filled) * self.filled
        return whole[0] * whole[1]

    @property
    def is_seen(self) -> jax.Array | None:
        """Which patches others see, bool [P], where some fill squares."""
        return None if self.filled == 1 else (self.places < self.size).all(axis=1)

    @property
    def context(self) -> ForwardContext:
        """The context of products about the patches."""
        return ForwardContext(self.num_patches)

    @property
    def segments(self) -> Segments:
        """The crop as the one text of a batch."""
        return as_one_text(self.num_patches, len(self.places))

    def position_ids(self, side: int) -> jax.Array:
        """The trained position of each patch, int32 [P], of those in a square of `side` each way, row by row."""
        return self.places[:, 0] * side + self.places[:, 1]

    def spread_ids(self, side: int) -> jax.Array:
        """The same, but crops of other sizes are spread over the square, as NaViT does it (arXiv 2307.06304)."""
        boundaries = jnp.arange(1, side, dtype=jnp.float32) / side
        step = 1.0 / self.size.astype(jnp.float32)
        fractions = jnp.minimum(self.places.astype(jnp.float32) * step, jnp.float32(1.0 - 1e-6))
        buckets = jnp.searchsorted(boundaries, fractions, side="right").astype(jnp.int32)
        ids = buckets[:, 0] * side + buckets[:, 1]
        return ids if self.is_seen is None else jnp.where(self.is_seen, ids, 0)


def as_one_text(count: jax.Array, size: int) -> Segments:
    """The one text of a batch of `size` places, which has the first `count` (int32 []) of them."""
    return Segments(jnp.stack([jnp.zeros_like(count), count]), jnp.zeros(size, jnp.int32), count, jnp.int32(1))
