"""The protocol of a backend of latent attention, and the registry of them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Literal, Protocol, cast

import jax
import jax.numpy as jnp
from jax import lax

from jaxllm.pallas_kernels.ragged_batch import RaggedBatch


@dataclass(frozen=True)
class LatentOptions:
    """Options of one call."""

    scale: float
    """Factor on the scores."""
    checks: bool = False
    """For debugging: a kernel for TPUs stops where it leaves an array or a semaphore is wrong, and is slower."""
    sinks: jax.Array | None = None
    """float32 [N], a score per head that takes part in the softmax and has no value."""
    window: int = 0
    """A token sees itself and so many - 1 keys before it; 0: all of them."""
    writes: bool = True
    """Whether the layer has latents of its own; if not, the cache has them, and the new ones mean nothing."""


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class KeyIndex:
    """What chooses the keys that a token sees: a small product of its own for each token and key.

    With M index heads of size I, the score of a key is the sum over heads of `weights * relu(query . key * I ** -0.5)`.
    A token sees the `top` keys with the best scores; of equal ones those that come first.

    With a `bias` for each place in a group, keys are chosen in groups of so many tokens, and those of the token's own
    unfinished group are always seen. The key of a group is the mean of its tokens' keys, each element weighted by the
    softmax of `weight + bias`; the cache has keys and weights side by side.
    """

    query: jax.Array
    """[T, M, I], rotated."""
    weights: jax.Array
    """[T, M] weights of heads, float32."""
    key: jax.Array
    """[T, I] index keys of the new tokens, rotated; they are cached after the rotary part. With a `bias` [T, 2 * I]."""
    top: int = field(metadata={"static": True})
    bias: jax.Array | None = None
    """float32 [G, I], for groups of G tokens."""

    @property
    def pool(self) -> int:
        """Tokens of a group."""
        return 1 if self.bias is None else len(self.bias)

    @property
    def most(self) -> int:
        """Keys that a token sees at most."""
        return self.top + self.pool - 1


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class ChosenKeys:
    """The keys that each token sees, as an index of another layer has chosen them."""

    places: jax.Array
    """int32 [T, most]: places [P * C] in the cache, in the order of positions; after those of a token any others."""
    pool: int = field(default=1, metadata={"static": True})
    """Tokens that are chosen together."""

    def count(self, positions: jax.Array) -> jax.Array:
        """How many keys tokens at `positions` int32 [T] see."""
        seen, most = positions + 1, self.places.shape[1]
        if self.pool == 1:
            return jnp.minimum(seen, most)
        groups = jnp.minimum(lax.div(seen, self.pool), (most - self.pool + 1) // self.pool)
        return groups * self.pool + lax.rem(seen, self.pool)

    def rows(self, batch: RaggedBatch) -> RaggedBatch:
        """Every token of a batch as a decode of its own, whose page table has the places of the keys that it sees."""
        order = jnp.arange(len(batch.positions) + 1, dtype=jnp.int32)
        return RaggedBatch(
            positions=batch.positions,
            token_rows=order[:-1],
            query_start=order,
            kv_lens=self.count(batch.positions),
            page_table=self.places,
            num_tokens=batch.num_tokens,
            num_decodes=batch.num_tokens,
            num_requests=batch.num_tokens,
        )


@dataclass(frozen=True)
class LatentSizes:
    """The sizes of a token in the cache of a layer: a latent of size Z, a rotary part of size Y, an index key of I."""

    latent: int
    rope: int
    index: int = 0

    @property
    def key(self) -> int:
        """Numbers of a token's key: 576 in DeepSeek's models."""
        return self.latent + self.rope

    @property
    def token(self) -> int:
        """Numbers of a token in a layer: the whole of what is cached."""
        return self.key + self.index


@dataclass(frozen=True)
class LatentGeometry:
    """The geometry of a cache: L layers, P pages of C tokens, in an array type (NumPy's name)."""

    layers: int
    pages: int
    page_size: int
    sizes: LatentSizes
    dtype: str
    for_tpu: bool = False
    """Whether the cache is to be an array that TPUs neither pad nor copy, where an implementation has two shapes."""


class LatentAttention(Protocol):
    """`latent_attention` without the choice."""

    def __call__(
        self,
        q_latent: jax.Array,
        q_rope: jax.Array,
        latent: jax.Array,
        k_rope: jax.Array,
        kv_cache: jax.Array,
        layer: int | jax.Array,
        batch: RaggedBatch,
        options: LatentOptions,
    ) -> tuple[jax.Array, jax.Array]:
        """See `latent_attention`."""
        ...


class IndexedLatentAttention(Protocol):
    """`latent_attention` with an index of keys, without the choice."""

    def __call__(
        self,
        q_latent: jax.Array,
        q_rope: jax.Array,
        latent: jax.Array,
        k_rope: jax.Array,
        kv_cache: jax.Array,
        layer: int | jax.Array,
        batch: RaggedBatch,
        options: LatentOptions,
        index: KeyIndex | ChosenKeys,
    ) -> tuple[jax.Array, jax.Array, ChosenKeys]:
        """See `indexed_latent_attention`."""
        ...


def canonical_shape(geometry: LatentGeometry) -> tuple[int, ...]:
    """[L, P, C, Z + Y + I]: of every token its latent, then its rotary part, then its index key."""
    return (geometry.layers, geometry.pages, geometry.page_size, geometry.sizes.token)


LatentFeature = Literal[
    "sinks", "windows", "latents of other layers", "latents of several sizes", "an index of groups of keys"
]
"""What an implementation may lack: options of `LatentOptions` and `KeyIndex`, and rows that are longer than a key."""


@dataclass(frozen=True)
class LatentBackend:
    """An implementation of latent attention."""

    call: LatentAttention
    cache_shape: Callable[[LatentGeometry], tuple[int, ...]] = canonical_shape
    """Axis 0 is the layer, axis 1 the page."""
    from_canonical: Callable[[jax.Array, LatentSizes], jax.Array] = lambda cache, sizes: cache
    """A cache of `canonical_shape` as `call` has it, for tests and tools; a running engine never converts."""
    to_canonical: Callable[[jax.Array, LatentSizes], jax.Array] = lambda cache, sizes: cache
    """A cache from the result of `from_canonical`: its inverse."""
    prepare: Callable[[RaggedBatch, int, int], RaggedBatch] = lambda batch, num_heads, most_short: batch
    """Adds to a batch what would otherwise be made in every layer; `call` also takes a batch without.

    `prepare(batch, num_heads, most_short)`, for the query heads of one device; see `most_short` of paged attention.
    """
    supports: frozenset[LatentFeature] = frozenset()
    call_indexed: IndexedLatentAttention | None = None
    """Attention to the keys that an index chooses; None where it is not implemented."""


LATENT_BACKENDS: Mapping[str, str] = {
    "reference": "reference",
    "xla": "xla",
    "cpu": "cpu.attention",
    "cpu_pairs": "cpu.pairs",
    "tpu": "tpu.attention",
}
"""The module that has each as its `BACKEND`: `reference` is slow and obvious, `xla` runs everywhere."""


def get_latent_backend(name: str) -> LatentBackend:
    """A backend by its name. Other machines do not load its compiler. Raises `KeyError` where there is none."""
    module = import_module(f"{__package__}.{LATENT_BACKENDS[name]}")
    return cast(LatentBackend, module.BACKEND)
