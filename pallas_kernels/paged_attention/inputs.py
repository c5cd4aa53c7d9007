"""A case of paged attention, and the arrays that stand for it."""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import DTypeLike

from jaxllm.pallas_kernels.paged_attention.api import paged_attention, prepare
from jaxllm.pallas_kernels.paged_attention.backend import Heads
from jaxllm.pallas_kernels.paged_attention.dynamic_scales import join_scales, quantise_heads
from jaxllm.pallas_kernels.paged_attention.local_chunks import chunked_batch
from jaxllm.pallas_kernels.paged_attention.options import AttentionOptions
from jaxllm.pallas_kernels.ragged_batch import NULL_PAGE, RaggedBatch

LAYER = 1
"""The layer that `Inputs.call` attends over, unless told."""


@dataclass(frozen=True)
class Case:
    """One batch: per row the tokens it brings and the tokens already in the cache."""

    name: str
    rows: tuple[tuple[int, int], ...]
    """(new tokens, computed tokens) per row; rows of one token are decodes and come first."""
    num_heads: int = 4
    num_kv_heads: int = 2
    head_size: int = 64
    page_size: int = 16
    padding_tokens: int = 0
    padding_rows: int = 0
    prefix: int = 0
    """Rows with at least so many computed tokens begin with the same ones, and share the pages that these fill."""
    window: int | None = None
    spans: tuple[tuple[int, int, int], ...] = ()
    """(row, begin, end): positions of a row, all in one step, whose tokens see one another."""
    chunk: int | None = None
    """Attention within chunks of so many positions, see `chunked_batch`."""
    unseen_are_null: bool = False
    """Pages that the window or chunks hide from every token to come were given back: `NULL_PAGE` is in their place."""
    soft_cap: float | None = None
    sinks: bool = False
    alibi: bool = False
    dtype: str = "float32"
    """Data type of queries, new keys and values, and the result."""
    kv_dtype: str | None = None
    """Data type of the cache; None means `dtype`."""
    k_scale: float | None = None
    v_scale: float | None = None
    scale_bytes: int = 0
    """Bytes of a scale per token and head, see `AttentionOptions`."""
    traced: bool = False
    """Window and scales are arrays, as a scan over layers gives them, not Python numbers."""
    layers: int = 2
    writes: bool = True
    """See `AttentionOptions.writes`."""
    most_short: int = 1
    """See `Heads.most_short`. If it is not 1, the batch is prepared as a model does, since only then is it known."""
    seed: int = 0

    @property
    def num_tokens(self) -> int:
        """Tokens that are not padding."""
        return sum(new for new, _ in self.rows)

    @property
    def cache_dtype(self) -> np.dtype:
        """Array type of the cache."""
        return jnp.dtype(self.kv_dtype or self.dtype)

    @property
    def scale(self) -> float:
        """Factor on the scores."""
        return self.head_size**-0.5

    def first_key(self, position: int) -> int:
        """The first key that a query at a position sees."""
        if self.chunk:
            return position // self.chunk * self.chunk
        return max(position - self.window + 1, 0) if self.window else 0

    @property
    def row_pages(self) -> tuple[int, ...]:
        """Pages that each row holds."""
        return tuple(-(-(new + computed) // self.page_size) for new, computed in self.rows)


def minimum_bytes(case: Case) -> int:
    """Bytes that any implementation must move between HBM and the chip.

    Queries, new keys and new values are read once, results written once, and the new keys and values written to the
    cache, for tokens that are not padding. Each row reads once, and as a whole, every page that holds a key which is
    in the cache before the step and visible to some query of the row. It need not read what the step itself brings,
    and a page that several rows share (a common prefix) counts for each.
    """
    q_size, kv_size = jnp.dtype(case.dtype).itemsize, case.cache_dtype.itemsize
    token = 2 * case.num_kv_heads * case.head_size
    stored = (token + 2 * case.num_kv_heads * case.scale_bytes) * kv_size
    total = case.num_tokens * (2 * case.num_heads * case.head_size * q_size + token * q_size + stored)
    for new, computed in case.rows:
        first = case.first_key(computed)
        pages = -(-computed // case.page_size) - first // case.page_size if new and first < computed else 0
        total += pages * case.page_size * stored
    return total


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Inputs:
    """The arguments of `paged_attention` for a case. A pytree, so that it passes through `jax.jit` as one argument."""

    case: Case = field(metadata={"static": True})
    q: jax.Array
    k: jax.Array
    v: jax.Array
    kv_cache: jax.Array
    """[L, P, C, 2K, H]. A backend with a shape of its own gets it by `dataclasses.replace`."""
    batch: RaggedBatch
    sinks: jax.Array | None
    alibi_slopes: jax.Array | None
    traced: tuple[jax.Array | None, jax.Array | None, jax.Array | None]
    """Window, key scale and value scale of a case whose are traced."""

    @property
    def options(self) -> AttentionOptions:
        """All that the case asks for."""
        case = self.case
        window, k_scale, v_scale = self.traced if case.traced else (case.window, case.k_scale, case.v_scale)
        scores = case.scale, window, case.soft_cap, self.sinks, self.alibi_slopes
        return AttentionOptions(*scores, k_scale, v_scale, case.scale_bytes, writes=case.writes)

    @property
    def step(self) -> RaggedBatch:
        """The batch as attention takes it, not prepared."""
        return chunked_batch(self.batch, self.case.chunk, self.case.page_size) if self.case.chunk else self.batch

    def call(self, implementation: str, layer: int | jax.Array = LAYER) -> tuple[jax.Array, jax.Array]:
        """`paged_attention` on these arrays: [T, N, H] and the updated cache."""
        arrays = self.q, self.k, self.v, self.kv_cache
        return paged_attention(
            *arrays, layer, self.prepared(implementation), self.options, implementation=implementation
        )

    def prepared(self, implementation: str) -> RaggedBatch:
        """The batch as attention takes it, prepared where rows may be short."""
        case = self.case
        if case.most_short == 1:
            return self.step
        shape = case.num_heads, case.num_kv_heads, case.head_size, case.cache_dtype.name
        windows = frozenset({case.window or 0})
        return prepare(implementation, self.step, Heads(*shape, windows, case.most_short))


def make_inputs(case: Case) -> Inputs:
    """Random arrays. Pages are shuffled, and places of the cache that hold no token are large."""
    rng = np.random.default_rng(case.seed)
    batch, num_pages = make_batch(case, rng)
    tokens, cache_shape = case.num_tokens + case.padding_tokens, _cache_shape(case, num_pages)

    def normal(*shape: int, dtype: DTypeLike = jnp.float32) -> jax.Array:
        return jnp.asarray(rng.standard_normal(shape, np.float32), dtype)

    q = normal(tokens, case.num_heads, case.head_size, dtype=case.dtype)
    k, v = (normal(tokens, case.num_kv_heads, case.head_size, dtype=case.dtype) for _ in range(2))
    steps = -8 * np.arange(1, case.num_heads + 1, dtype=np.float32) / case.num_heads
    return Inputs(
        case,
        q,
        k,
        v,
        jnp.asarray(_make_cache(case, cache_shape, np.asarray(batch.page_table), rng)),
        batch,
        normal(case.num_heads) if case.sinks else None,
        jnp.asarray(2**steps) if case.alibi else None,
        _traced(case),
    )


def abstract_inputs(case: Case) -> Inputs:
    """The shapes of `make_inputs` (`jax.ShapeDtypeStruct`), for compiling without the memory."""
    batch, num_pages = make_batch(case, np.random.default_rng(case.seed))
    tokens, cache_shape = case.num_tokens + case.padding_tokens, _cache_shape(case, num_pages)

    def placeholder(*shape: int, dtype: DTypeLike = case.dtype) -> Any:
        return jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))

    per_head = placeholder(case.num_heads, dtype=jnp.float32)
    inputs = Inputs(
        case,
        q=placeholder(tokens, case.num_heads, case.head_size),
        k=placeholder(tokens, case.num_kv_heads, case.head_size),
        v=placeholder(tokens, case.num_kv_heads, case.head_size),
        kv_cache=placeholder(*cache_shape, dtype=case.cache_dtype),
        batch=batch,
        sinks=per_head if case.sinks else None,
        alibi_slopes=per_head if case.alibi else None,
        traced=_traced(case),
    )
    return jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), inputs)


def _traced(case: Case) -> tuple[jax.Array | None, jax.Array | None, jax.Array | None]:
    if not case.traced:
        return None, None, None
    k_scale, v_scale = (None if scale is None else jnp.float32(scale) for scale in (case.k_scale, case.v_scale))
    return None if case.window is None else jnp.int32(case.window), k_scale, v_scale


def _cache_shape(case: Case, num_pages: int) -> tuple[int, ...]:
    return (case.layers, num_pages, case.page_size, 2 * case.num_kv_heads, case.head_size + case.scale_bytes)


def make_batch(case: Case, rng: np.random.Generator) -> tuple[RaggedBatch, int]:
    """Where the tokens sit, and how many pages there are."""
    num_pages = sum(case.row_pages) + 3
    table = np.zeros((len(case.rows) + case.padding_rows, max([*case.row_pages, 1]) + 2), np.int32)
    shuffled = np.split(rng.permutation(np.arange(1, num_pages)), np.cumsum(case.row_pages, dtype=np.int32))
    for row, pages in enumerate(shuffled[:-1]):
        table[row, : len(pages)] = pages
    alike = [row for row, (_, computed) in enumerate(case.rows) if computed >= case.prefix]
    table[alike, : case.prefix // case.page_size] = table[alike[:1], : case.prefix // case.page_size]
    if case.unseen_are_null:
        for row, (_, computed) in enumerate(case.rows):
            table[row, : case.first_key(computed) // case.page_size] = NULL_PAGE
    new = np.array([new for new, _ in case.rows], np.int32)
    lengths = np.array([new + computed for new, computed in case.rows], np.int32)
    positions = np.concatenate([np.arange(c, c + n, dtype=np.int32) for n, c in case.rows] or [new])

    def padded(values: np.ndarray, count: int, value: int = 0) -> jax.Array:
        return jnp.asarray(np.pad(values, (0, count), constant_values=value), jnp.int32)

    batch = RaggedBatch(
        positions=padded(positions, case.padding_tokens),
        token_rows=padded(np.repeat(np.arange(len(new)), new), case.padding_tokens),
        query_start=padded(np.concatenate([[0], np.cumsum(new)]), case.padding_rows, case.num_tokens),
        kv_lens=padded(lengths, case.padding_rows),
        page_table=jnp.asarray(table),
        num_tokens=jnp.int32(case.num_tokens),
        num_decodes=jnp.int32((new == 1).sum()),
        num_requests=jnp.int32(len(new)),
        visible_until=padded(_visible_until(case, positions), case.padding_tokens) if case.spans else None,
    )
    return batch, num_pages


def _visible_until(case: Case, positions: np.ndarray) -> np.ndarray:
    """The end of what each token sees, int32 [tokens]."""
    ends, starts = positions + 1, np.cumsum([0, *(new for new, _ in case.rows)])
    for row, begin, end in case.spans:
        new, computed = case.rows[row]
        assert computed <= begin < end <= computed + new
        ends[starts[row] + begin - computed : starts[row] + end - computed] = end
    return ends


def _make_cache(case: Case, shape: tuple[int, ...], table: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """The computed tokens at their places, quantized."""
    integers = jnp.issubdtype(case.cache_dtype, jnp.integer)
    limits = jnp.iinfo(case.cache_dtype) if integers else jnp.finfo(case.cache_dtype)
    largest = float(limits.max)
    cache = np.full(shape, min(1e4, largest), case.cache_dtype)
    computed = np.concatenate([np.arange(computed) for _, computed in case.rows] or [np.zeros(0, np.int64)])
    rows = np.repeat(np.arange(len(case.rows)), [computed for _, computed in case.rows])
    pages = table[rows, computed // case.page_size]
    values = rng.standard_normal((case.layers, len(computed), *shape[3:]), np.float32)
    if case.scale_bytes:
        cache[:] = join_scales(quantise_heads(jnp.full((*shape[:4], case.head_size), 1e4)), case.scale_bytes)
        values = np.asarray(join_scales(quantise_heads(jnp.asarray(values[..., : case.head_size])), case.scale_bytes))
    else:
        values[..., 0::2, :] /= case.k_scale or 1
        values[..., 1::2, :] /= case.v_scale or 1
        values = np.clip(np.rint(values) if integers else values, -largest, largest)
    is_kept = pages != NULL_PAGE
    cache[:, pages[is_kept], (computed % case.page_size)[is_kept]] = values[:, is_kept].astype(case.cache_dtype)
    return cache
