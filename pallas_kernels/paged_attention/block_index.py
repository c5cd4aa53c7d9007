"""What chooses the keys that tokens see, in blocks of positions, for each KV head of its own."""

from dataclasses import dataclass, field

import jax
import jax.numpy as jnp


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

    def joined(self, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Keys and values [T, K + 1, H] as they are cached, from those of attention [T, K, H]."""
        own = jnp.pad(self.key, ((0, 0), (0, k.shape[2] - self.key.shape[1])))[:, None]
        return jnp.concatenate([k, own.astype(k.dtype)], axis=1), jnp.pad(v, ((0, 0), (0, 1), (0, 0)))
