"""Cases of latent attention that tests, tuning and benchmarks share, and how exact each must be."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jaxllm.pallas_kernels.latent_attention.api import latent_attention, prepare_latent
from jaxllm.pallas_kernels.latent_attention.backend import (
    KeyIndex,
    LatentGeometry,
    LatentOptions,
    LatentSizes,
    canonical_shape,
)
from jaxllm.pallas_kernels.paged_attention import inputs as paged
from jaxllm.pallas_kernels.ragged_batch import RaggedBatch

LAYER = 1
"""The layer that `Inputs.call` attends over, unless told."""


@dataclass(frozen=True)
class Case:
    """One batch: per row the tokens it brings and the tokens already in the cache."""

    name: str
    rows: tuple[tuple[int, int], ...]
    """(new tokens, computed tokens) per row; rows of one token are decodes and come first."""
    num_heads: int = 4
    latent_size: int = 64
    rope_size: int = 32
    index_heads: int = 0
    index_size: int = 0
    top: int = 0
    """Of the index of keys, where there is one."""
    sinks: bool = False
    window: int = 0
    """See `LatentOptions`."""
    page_size: int = 16
    padding_tokens: int = 0
    padding_rows: int = 0
    prefix: int = 0
    """Rows with at least so many computed tokens begin with the same ones, and share the pages that these fill."""
    dtype: str = "float32"
    """Data type of queries, new latents, the cache and the result."""
    layers: int = 2
    most_short: int = 1
    """See `paged_attention`'s."""
    seed: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens that are not padding."""
        return self.paged.num_tokens

    @property
    def sizes(self) -> LatentSizes:
        """The sizes of a token."""
        return LatentSizes(self.latent_size, self.rope_size, self.index_size)

    @property
    def scale(self) -> float:
        """Factor on the scores."""
        return self.sizes.key**-0.5

    @property
    def paged(self) -> paged.Case:
        """A case of paged attention whose tokens sit alike."""
        return paged.Case(
            self.name,
            self.rows,
            page_size=self.page_size,
            padding_tokens=self.padding_tokens,
            padding_rows=self.padding_rows,
            prefix=self.prefix,
        )

    def geometry(self, pages: int) -> LatentGeometry:
        """A cache of so many pages."""
        return LatentGeometry(self.layers, pages, self.page_size, self.sizes, self.dtype)


TOLERANCES: dict[str, float] = {"float32": 5e-6, "bfloat16": 3e-2, "float16": 4e-3}
"""Largest absolute error of a result, by its type, against float64 on the stored values. See those of
`paged_attention`."""


def tolerance(case: Case) -> float:
    """Largest absolute error of a result of `case`."""
    return TOLERANCES[case.dtype]


def minimum_bytes(case: Case) -> int:
    """Bytes that any implementation must move between HBM and the chip.

    Queries and new latents are read once, results written once, and the new latents written to the cache, for tokens
    that are not padding, but for those of an index. Each row reads once every page that holds a key which is in the
    cache before the step and which it sees; a page that several rows share counts for each.
    """
    token = case.sizes.token
    numbers = case.num_tokens * (case.num_heads * (case.sizes.key + case.latent_size) + 2 * token)
    firsts = [max(computed - case.window + 1, 0) if case.window else 0 for _, computed in case.rows]
    rows = zip(case.rows, firsts, strict=True)
    pages = sum(-(-computed // case.page_size) - first // case.page_size for (new, computed), first in rows if new)
    return (numbers + pages * case.page_size * token) * jnp.dtype(case.dtype).itemsize


def products(case: Case) -> int:
    """Floating-point operations of the two products, a multiplication and an addition each."""
    most = case.window or max((new + computed for new, computed in case.rows), default=0)
    seen = sum(min(position + 1, most) for new, old in case.rows for position in range(old, old + new))
    return 2 * seen * case.num_heads * (case.sizes.key + case.latent_size)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Inputs:
    """The arguments of `latent_attention` for a case. A pytree, so that it passes through `jax.jit` as one argument."""

    case: Case = field(metadata={"static": True})
    q_latent: jax.Array
    q_rope: jax.Array
    latent: jax.Array
    k_rope: jax.Array
    kv_cache: jax.Array
    """[L, P, C, Z + Y + I]. A backend with a shape of its own gets it by `dataclasses.replace`."""
    batch: RaggedBatch
    index: KeyIndex | None = None
    sinks: jax.Array | None = None

    def call(self, implementation: str, layer: int | jax.Array = LAYER) -> tuple[jax.Array, jax.Array]:
        """`latent_attention` on these arrays: [T, N, Z] and the updated cache."""
        arrays = self.q_latent, self.q_rope, self.latent, self.k_rope, self.kv_cache
        options = LatentOptions(self.case.scale, sinks=self.sinks, window=self.case.window)
        batch = self.prepared(implementation)
        return latent_attention(*arrays, layer, batch, options, index=self.index, implementation=implementation)

    def prepared(self, implementation: str) -> RaggedBatch:
        """The batch as a model prepares it."""
        return prepare_latent(implementation, self.batch, self.case.num_heads, self.case.most_short)


def make_inputs(case: Case) -> Inputs:
    """Random arrays. Pages are shuffled, and places of the cache that hold no token are large."""
    rng = np.random.default_rng(case.seed)
    batch, num_pages = paged.make_batch(case.paged, rng)
    tokens, sizes = case.num_tokens + case.padding_tokens, case.sizes

    def normal(*shape: int, dtype: DTypeLike = case.dtype) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape, np.float32), dtype)

    return Inputs(
        case,
        normal(tokens, case.num_heads, sizes.latent),
        normal(tokens, case.num_heads, sizes.rope),
        normal(tokens, sizes.latent),
        normal(tokens, sizes.rope),
        jnp.asarray(_make_cache(case, num_pages, np.asarray(batch.page_table), rng)),
        batch,
        _index(case, normal),
        normal(case.num_heads, dtype=jnp.float32) if case.sinks else None,
    )


def abstract_inputs(case: Case) -> Inputs:
    """The shapes of `make_inputs` (`jax.ShapeDtypeStruct`), for compiling without the memory."""
    batch, num_pages = paged.make_batch(case.paged, np.random.default_rng(case.seed))
    tokens, sizes = case.num_tokens + case.padding_tokens, case.sizes

    def placeholder(*shape: int, dtype: DTypeLike = case.dtype) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))

    return Inputs(
        case,
        placeholder(tokens, case.num_heads, sizes.latent),
        placeholder(tokens, case.num_heads, sizes.rope),
        placeholder(tokens, sizes.latent),
        placeholder(tokens, sizes.rope),
        placeholder(*canonical_shape(case.geometry(num_pages))),
        jax.tree.map(lambda leaf: placeholder(*leaf.shape, dtype=leaf.dtype), batch),
        _index(case, placeholder),
        placeholder(case.num_heads, dtype=jnp.float32) if case.sinks else None,
    )


def _index(case: Case, make: Callable[..., Any]) -> KeyIndex | None:
    """The index of a case, of arrays that `make(*shape)` makes."""
    if not case.index_heads:
        return None
    tokens = case.num_tokens + case.padding_tokens
    query, key = make(tokens, case.index_heads, case.index_size), make(tokens, case.index_size)
    return KeyIndex(query, make(tokens, case.index_heads, dtype=jnp.float32), key, case.top)


def _make_cache(case: Case, pages: int, table: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The computed tokens at their places."""
    shape = canonical_shape(case.geometry(pages))
    cache = np.full(shape, 1e4, jnp.dtype(case.dtype))
    computed = np.concatenate([np.arange(computed) for _, computed in case.rows] or [np.zeros(0, np.int64)])
    rows = np.repeat(np.arange(len(case.rows)), [computed for _, computed in case.rows])
    values = rng.standard_normal((case.layers, len(computed), shape[-1]), np.float32)
    cache[:, table[rows, computed // case.page_size], computed % case.page_size] = values.astype(cache.dtype)
    return cache


_MIXED = ((1, 5), (1, 0), (1, 33), (7, 0), (70, 3), (3, 29))
_SHARED_PREFIX = ((1, 260), (1, 300), (1, 20), (1, 256), (1, 389), (1, 257), (20, 256), (3, 31))
_FEW = ((1, 20), (1, 47), (17, 9), (20, 0))

_DRAFTS = ((1, 5), (1, 256), (4, 33), (3, 126), (4, 254), (4, 0), (2, 511), (70, 3), (2, 20))

CASES: tuple[Case, ...] = (
    Case("one_decode", ((1, 9),)),
    Case("decodes", ((1, 0), (1, 1), (1, 15), (1, 16), (1, 130), (1, 17))),
    Case("many_decodes", tuple((1, 7 * i % 41) for i in range(37)), padding_tokens=27, padding_rows=27),
    Case("prefill", ((130, 0),)),
    Case("prefill_chunk", ((65, 61),)),
    Case("mixed", _MIXED, padding_tokens=5, padding_rows=3),
    Case("shared_prefix", _SHARED_PREFIX, prefix=256, padding_tokens=3, padding_rows=2),
    Case("empty", (), padding_tokens=8, padding_rows=4),
    Case("empty_rows", ((1, 5), (0, 20), (3, 4), (0, 0), (2, 17)), padding_tokens=2),
    Case("one_head", _FEW, num_heads=1),
    Case("five_heads", _MIXED, num_heads=5),
    Case("deepseek", _MIXED, num_heads=16, latent_size=512, rope_size=64),
    Case("deepseek_bfloat16", _MIXED, num_heads=16, latent_size=512, rope_size=64, dtype="bfloat16", page_size=64),
    Case("many_heads", ((1, 20), (3, 9)), num_heads=128, latent_size=512, rope_size=64, dtype="bfloat16"),
    Case("minicpm3", _FEW, num_heads=40, latent_size=256, rope_size=32),
    Case("odd_sizes", _FEW, num_heads=3, latent_size=48, rope_size=16),
    Case("page_64", _MIXED, page_size=64),
    Case("page_128", ((1, 300), (40, 100)), page_size=128, dtype="bfloat16"),
    Case("short", _DRAFTS, num_heads=5, padding_tokens=3, padding_rows=2, most_short=4),
    Case("long", ((1, 4000), (1, 20), (9, 2990)), page_size=64, dtype="bfloat16"),
)
"""Every feature and the combinations that matter, at sizes that an interpreter of kernels can bear."""

MODEL_HEADS: dict[str, int] = {"deepseek_v2_lite": 16, "deepseek_v3_tp8": 16, "kimi_k2_tp4": 16, "deepseek_v3": 128}
"""Query heads on one device, all with latents of 512 and rotary parts of 64."""

_BENCHMARKS: dict[str, tuple[tuple[int, int], ...]] = {
    "decode_1x8k": ((1, 8191),),
    "decode_64x1k": ((1, 1023),) * 64,
    "decode_64x4k": ((1, 4095),) * 64,
    "prefill_2k": ((2048, 0),),
    "prefill_chunk": ((2048, 6144),),
    "mixed": (*((1, 2047),) * 32, (1000, 0), (1016, 3000)),
}

BENCHMARK_CASES: tuple[Case, ...] = tuple(
    Case(f"{model}-{name}", rows, num_heads=heads, latent_size=512, rope_size=64, page_size=64, dtype="bfloat16")
    for model, heads in MODEL_HEADS.items()
    for name, rows in _BENCHMARKS.items()
)
"""Shapes of real models, for compiling (`abstract_inputs`), tuning and benchmarks."""
