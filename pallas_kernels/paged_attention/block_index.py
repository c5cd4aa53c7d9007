"""What chooses the keys that tokens see, in blocks of positions: for each KV head of its own, or for all of them."""

from dataclasses import dataclass, field, replace
from math import sqrt
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class BlockIndex:
    """A small product of its own for each token, KV head and key (MiniMax M3's index).

    A block is so many positions side by side. Its score for a KV head of a token is the largest product of the head's
    `query` with an index key in it, up to the token. The head sees the `top` blocks with the best scores, up to the
    token; of equal ones those that come first. The `local` last blocks, with the token's own, are better than all
    others.
    """

    query: jax.Array
    """[T, K, I], rotated."""
    key: jax.Array
    """[T, I] index keys of the new tokens, rotated. They are cached as the key of one more KV head, padded with zeros,
    whose value is zero.
    """
    block: int = field(metadata={"static": True})
    top: int = field(metadata={"static": True})
    local: int = field(metadata={"static": True})

    @property
    def choices(self) -> int:
        """Choices of blocks for each token: one for each KV head."""
        return self.query.shape[1]

    @property
    def most(self) -> int:
        """Blocks that a token sees at most."""
        return self.top

    def limits(self, positions: jax.Array) -> jax.Array:
        """The same of tokens at `positions` int32 [...]."""
        return jnp.full_like(positions, self.top)

    def scores(self, keys: jax.Array, first: jax.Array, positions: jax.Array) -> jax.Array:
        """Scores float32 [B, choices, blocks] of tokens [B] at `positions`, or -inf where a block is not seen.

        `keys` [B, S, I] are index keys of whole blocks from position `first` int32 [] on.
        """
        products = jnp.einsum("bki,bsi->bks", self.query.astype(keys.dtype), keys, preferred_element_type=jnp.float32)
        at = first + jnp.arange(keys.shape[1], dtype=jnp.int32)
        seen = jnp.where((at <= positions[:, None])[:, None], products, -jnp.inf)
        best = seen.reshape(*seen.shape[:2], -1, self.block).max(axis=-1)
        own = lax.div(positions, jnp.int32(self.block))[:, None]
        blocks = lax.div(first, jnp.int32(self.block)) + jnp.arange(best.shape[2], dtype=jnp.int32)
        is_local = (blocks <= own) & (blocks > own - self.local)
        return jnp.where(is_local[:, None], jnp.inf, best)

    def split_by(self, kv_heads: Any, whole: Any) -> "BlockIndex":
        """How devices that share KV heads have the arrays: partitions in place of these."""
        return replace(self, query=kv_heads, key=whole)

    def joined(self, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Keys and values [T, K + 1, H] as they are cached, from those of attention [T, K, H]."""
        return _joined(self.key, k, v)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class GroupIndex:
    """A score of every group of tokens, which all KV heads share (Qwen4-Exp's index).

    A block is a group of so many tokens side by side. Its key is the mean of its tokens' index keys, normalised and
    rotated as at the group's first position; its score the sum over index heads of what is positive of their products
    with it. A token sees the `top` complete groups with the best scores, and those before it of an incomplete one; of
    equal ones those that come first.
    """

    query: jax.Array
    """[T, heads, I], normalised and rotated."""
    key: jax.Array
    """[T, I] index keys of the new tokens, as a product gives them, cached as those of `BlockIndex`."""
    norm: jax.Array
    """[I], what the normalised mean is multiplied by."""
    block: int = field(metadata={"static": True})
    top: int = field(metadata={"static": True})
    eps: float = field(metadata={"static": True})
    """Added to the mean square."""
    frequencies: tuple[float, ...] = field(metadata={"static": True})
    """Angle per position of each pair that is rotated, the first ones; a pair is half a key apart."""
    factor: float = field(metadata={"static": True})
    """That on cosine and sine."""

    @property
    def choices(self) -> int:
        """One choice of groups for each token."""
        return 1

    @property
    def most(self) -> int:
        """Groups that a token sees at most, the incomplete one among them."""
        return self.top + 1

    def limits(self, positions: jax.Array) -> jax.Array:
        """The same of tokens at `positions` int32 [...]."""
        return self.top + (lax.rem(positions + 1, jnp.int32(self.block)) != 0).astype(jnp.int32)

    def scores(self, keys: jax.Array, first: jax.Array, positions: jax.Array) -> jax.Array:
        """See `BlockIndex`. The incomplete group is better than all others."""
        size, _, width = keys.shape
        groups = keys.astype(jnp.float32).reshape(size, -1, self.block, width).mean(axis=2)
        starts = first + self.block * jnp.arange(groups.shape[1], dtype=jnp.int32)
        made = self._rotated(self._normalised(groups.astype(self.query.dtype)), starts)
        products = jnp.einsum("bhi,bgi->bhg", self.query.astype(made.dtype), made, preferred_element_type=jnp.float32)
        total = jnp.maximum(products, 0.0).sum(axis=1) / sqrt(width)
        ends = starts + self.block - 1
        is_own = (starts <= positions[:, None]) & (ends > positions[:, None])
        scores = jnp.where(ends <= positions[:, None], total, jnp.where(is_own, jnp.inf, -jnp.inf))
        return scores[:, None]

    def _normalised(self, keys: jax.Array) -> jax.Array:
        wide = keys.astype(jnp.float32)
        scale = lax.rsqrt((wide * wide).mean(axis=-1, keepdims=True) + self.eps)
        return (wide * scale * self.norm.astype(jnp.float32)).astype(keys.dtype)

    def _rotated(self, keys: jax.Array, starts: jax.Array) -> jax.Array:
        """Keys [B, G, I], rotated as at positions `starts` [G]."""
        angles = starts.astype(jnp.float32)[:, None] * jnp.asarray(self.frequencies, jnp.float32)
        rest = ((0, 0), (0, keys.shape[2] // 2 - len(self.frequencies)))
        cos = jnp.pad(jnp.cos(angles) * self.factor, rest, constant_values=1.0)
        sin = jnp.pad(jnp.sin(angles) * self.factor, rest)
        one, two = jnp.split(keys.astype(jnp.float32), 2, axis=-1)
        return jnp.concatenate([one * cos - two * sin, two * cos + one * sin], axis=-1).astype(keys.dtype)

    def split_by(self, kv_heads: Any, whole: Any) -> "GroupIndex":
        """See `BlockIndex`. Each device makes the choice for itself."""
        return replace(self, query=whole, key=whole, norm=whole)

    def joined(self, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        """See `BlockIndex`."""
        return _joined(self.key, k, v)


def _joined(key: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
    own = jnp.pad(key, ((0, 0), (0, k.shape[2] - key.shape[1])))[:, None]
    return jnp.concatenate([k, own.astype(k.dtype)], axis=1), jnp.pad(v, ((0, 0), (0, 1), (0, 0)))


AnyIndex = BlockIndex | GroupIndex
"""The kinds of indexes, by which nothing else differs: attention asks for scores and for how many blocks are seen."""
