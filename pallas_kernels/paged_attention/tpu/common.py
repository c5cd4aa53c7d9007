"""Shared by the decode and the prefill kernel: block sizes, views of memory, and scores."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from jaxllm.pallas_kernels.float8 import FLOATS, bfloat16_pairs, widens_by_bits
from jaxllm.pallas_kernels.paged_attention.tpu.layout import Dims
from jaxllm.pallas_kernels.tpu_common.constants import LANES, LOG2_E, Ref
from jaxllm.pallas_kernels.tpu_common.scalars import div, rem

_TABLE_BYTES = 512 << 10
"""Bytes of SMEM, which has one mebibyte, that page tables may take."""

_FEW_SLOTS = 4
"""Slots that a kernel has for any width of page tables."""

_TOGETHER = 8
"""Pages that are asked for in one go: the addresses of several are computed at the same time."""

_WRITTEN_OUT = 8
"""Copies of a row of words per head that are written out in the program, at most."""

Shared = dict[tuple[int, int], jax.Array]
"""Words of two heads, widened, of keys (0) or values (1) and a fold."""


@dataclass(frozen=True)
class Blocks:
    """Block sizes of one kernel."""

    keys: int
    """Keys that are fetched together: a multiple of the page size, and of `chunk`."""
    chunk: int
    """Keys that are computed together: a multiple of 128 (or all of `keys`)."""
    slots: int
    """Blocks of keys in VMEM: some are computed, the others are on their way. A power of two is fastest."""
    queries: int = 1
    """Query tokens that are computed together (prefill)."""
    heads: int = 8
    """KV heads that are computed together, at most; less if they are not divisible."""


@dataclass(frozen=True)
class Options:
    """Static choices of one call."""

    dims: Dims
    blocks: Blocks
    soft_cap: float | None = None
    has_window: bool = False
    has_sinks: bool = False
    has_slopes: bool = False
    interpret: bool = False
    checks: bool = False
    """Compiled with checks of bounds and semaphores, see `compiler_params`."""
    tokens: int = 1
    """Tokens of a row at most (decode)."""
    has_spans: bool = False
    """Whether tokens may see later ones (prefill)."""

    @property
    def heads_together(self) -> int:
        """KV heads that are computed together."""
        return math.gcd(self.dims.num_kv_heads, self.blocks.heads)

    @property
    def chunks_together(self) -> int:
        """Chunks of keys in one loop body (decode). With few heads, the units would wait for one another's results.

        Each may lie in a slot of its own; half of the slots at least are left to blocks on their way.
        """
        return max(1, min(8 // self.dims.num_kv_heads, self.blocks.slots // 2))

    @property
    def dot_precision(self) -> lax.Precision | None:
        """Float32 operands are multiplied as such, not rounded to bfloat16."""
        return lax.Precision.HIGHEST if self.dims.compute_dtype == "float32" else None


class Scalars(NamedTuple):
    """Scalar prefetch, in SMEM."""

    layer: Ref
    """int32 [1]."""
    window: Ref
    """int32 [1], 0: none."""
    counts: Ref
    """int32 [2]: short rows, and other rows with tokens."""
    factors: Ref
    """float32 [2]: what queries and what values are multiplied with."""
    kv_lens: Ref
    query_start: Ref
    order: Ref
    """int32 [R]: the rows with tokens that are not short, first."""


class Seen(NamedTuple):
    """Scalar prefetch where tokens may see later ones, in SMEM."""

    until: Ref
    """int32 [T]: the end of the positions that each token sees."""
    next_seeing: Ref
    """int32 [T]: the first token from each on that sees later ones, T if there is none."""


def row_slots(blocks: Blocks, width: int) -> int:
    """Rows, a power of two, for which a kernel keeps queries and page tables of `width` pages.

    Tables of all blocks in flight are needed; more, if SMEM has room, let tables be asked for long before: they come
    after all pages that were asked for earlier.
    """
    rows = 1 << (3 * blocks.slots - 1).bit_length()
    while rows * width * 4 > _TABLE_BYTES and rows >= 2 * (blocks.slots + 2):
        rows //= 2
    return rows


def limit_slots(blocks: Blocks, width: int) -> Blocks:
    """`blocks`, with fewer slots where page tables of `width` pages would take too much of SMEM."""
    while blocks.slots > _FEW_SLOTS and row_slots(blocks, width) * width * 4 > _TABLE_BYTES:
        blocks = replace(blocks, slots=blocks.slots // 2)
    return blocks


def rows_ahead(blocks: Blocks, slots: int) -> int:
    """How many rows before its turn a page table is asked for, with `slots` places for them."""
    return min(2 * blocks.slots, slots - blocks.slots)


def window_begin(scalars: Scalars, position: Any, options: Options) -> Any:
    """First key that the query at `position` sees."""
    if not options.has_window:
        return jnp.int32(0)
    window = scalars.window[0]
    return jnp.where(window > 0, jnp.maximum(position - window + 1, 0), 0)


def _element(words: jax.Array, index: Any, dtype: jnp.dtype) -> jax.Array:
    """Element `index` of every word [n, 128], of a type with `packing` elements per word."""
    if dtype.itemsize == 4:
        return words
    bits = 8 * dtype.itemsize
    narrow = (words >> jnp.asarray(index * bits, jnp.uint32)).astype(jnp.dtype(f"uint{bits}"))
    return pltpu.bitcast(narrow, dtype)


def _convert(x: jax.Array, dtype: str) -> jax.Array:
    """To the type of the matrix units; 8-bit types go through float32."""
    if x.dtype == dtype:
        return x
    return x.astype(jnp.float32).astype(dtype)


def new_tokens(kv: Ref, options: Options) -> Ref:
    """The cache, or a buffer of its keys, as that to which new ones are copied: of words, unless interpreted."""
    return kv if options.interpret or kv.dtype.itemsize == 4 else kv.bitcast(jnp.uint32)


def start_pages(cache: Ref, table: Ref, kv: Ref, sem: Ref, positions: tuple[Any, Any, Any], options: Options) -> None:
    """Start copying keys from the pages of a row to a slot.

    `cache` [P, J, C, packing, 128], `table` [W], `kv` [J, S, packing, 128]; positions of the slot's first key, of the
    first that is copied, which is a page's first, and of the one after the last. Only the last page is cut.
    """
    page_size = options.dims.page_size
    base, begin, end = positions

    def start(column: Any, count: int, size: Any) -> None:
        # One sum for all addresses: what differs between the pages is known when this is compiled.
        target = kv.at[:, pl.ds(column * page_size - base, count * page_size)]
        for i in range(count):
            source = cache.at[table[column + i], :, pl.ds(0, size)]
            pltpu.make_async_copy(source, target.at[:, pl.ds(i * page_size, size)], sem).start()

    first, whole = div(begin, page_size), div(end, page_size)
    pages = jnp.maximum(whole - first, 0)
    groups = div(pages, _TOGETHER)
    lax.fori_loop(0, groups, lambda group, _: start(first + group * _TOGETHER, _TOGETHER, page_size), None)
    count = _TOGETHER // 2
    while count:
        column = first + div(pages, 2 * count) * (2 * count)
        pl.when((pages & count) > 0)(partial(start, column, count, page_size))
        count //= 2
    rest = rem(end, page_size)
    pl.when((rest > 0) & (end > begin))(lambda: start(whole, 1, rest))


def for_each(count: int, do: Callable[[Any], None]) -> None:
    """For every index below `count`; written out where they are few, so that addresses are computed side by side."""
    if count <= _WRITTEN_OUT:
        for index in range(count):
            do(index)
    else:
        lax.fori_loop(0, count, lambda index, _: do(index), None)


def load_heads(
    kv: Ref, slot: Any, first: Any, count: int, start: Any, valid: Callable[[Any], Any] | None, options: Options
) -> list[tuple[jax.Array, jax.Array]]:
    """`load_head` of `count` KV heads from `first` on, a multiple of `count`."""
    if count % 2 or options.dims.kv_packing != 4:
        return [load_head(kv, slot, first + i, start, valid, options) for i in range(count)]
    found = []
    for pair in range(count // 2):
        shared: Shared = {}
        places = [(div(first, 2) + pair, i) for i in range(2)]
        found += [load_head(kv, slot, place, start, valid, options, shared) for place in places]
    return found


def load_head(
    kv: Ref,
    slot: Any,
    head: Any,
    start: Any,
    valid: Callable[[Any], Any] | None,
    options: Options,
    shared: Shared | None = None,
) -> tuple[jax.Array, jax.Array]:
    """Keys and values [chunk, F * 128] of KV head `head`, from key `start` of a slot on.

    `head` may be the number of a pair and which of the two it is; `shared` then keeps what the pair has in common.

    Values of keys that `valid` (of an array of indices from `start` on) denies are 0: memory that no DMA has filled may
    hold anything.
    """
    dims, chunk = options.dims, options.blocks.chunk
    dtype = jnp.dtype(dims.kv_dtype)
    keep = None if valid is None else valid(lax.broadcasted_iota(jnp.int32, (chunk, LANES), 0))

    def load(which: int, keep: Any) -> jax.Array:
        pack, index = _place(head, which, dims.kv_packing)
        parts = []
        for fold in range(dims.folds):
            row = pack * dims.folds + fold
            if options.interpret:
                x = kv[slot, row, pl.ds(start, chunk)]
                x = jnp.stack([x[:, i] for i in range(dims.kv_packing)])[index]
                parts.append(x if keep is None else jnp.where(keep, x.astype(jnp.float32), 0.0).astype(dtype))
                continue
            words = _rows(kv, (slot, row))[pl.ds(start, chunk)]
            if keep is not None:
                words = jnp.where(keep, words, jnp.zeros_like(words))
            if dims.kv_dtype in FLOATS and widens_by_bits():
                # In both heads of a word, the key or the value: half of the operations, and no bytes to unpack.
                kept = {} if shared is None else shared
                if (which, fold) not in kept:
                    kept[which, fold] = bfloat16_pairs(words, which, dims.kv_dtype)
                half = head[1] if isinstance(head, tuple) else rem(head, 2)
                parts.append(_element(kept[which, fold], half, jnp.dtype(jnp.bfloat16)))
            else:
                parts.append(_element(words, index, dtype))
        return _convert(_join(parts), dims.compute_dtype)

    return load(0, None), load(1, keep)


def clear(kv: Ref, slot: Any, start: Any, valid: Callable[[Any], Any], options: Options) -> None:
    """Zero the keys of a chunk, from key `start` of a slot on, that `valid` (as in `load_head`) denies."""
    dims, size = options.dims, options.blocks.chunk
    if options.interpret:
        keep = valid(lax.broadcasted_iota(jnp.int32, (size, dims.kv_packing, LANES), 0))
    else:
        keep = valid(lax.broadcasted_iota(jnp.int32, (size, LANES), 0))
    for row in range(dims.packs):
        keys = kv.at[slot, row] if options.interpret else _rows(kv, (slot, row))
        old = keys[pl.ds(start, size)]
        keys[pl.ds(start, size)] = jnp.where(keep, old, jnp.zeros_like(old))


def _place(head: Any, which: int, per_word: int) -> tuple[Any, Any]:
    """Row (without folds) and element of the word that hold the key (0) or value (1) of a KV head."""
    if isinstance(head, tuple):
        return head[0], 2 * head[1] + which
    if per_word == 1:
        return 2 * head + which, 0
    if per_word == 2:
        return head, which
    return head // 2, (head % 2) * 2 + which


def _join(parts: list[jax.Array]) -> jax.Array:
    return parts[0] if len(parts) == 1 else jnp.concatenate(parts, axis=1)


def load_queries(q: Ref, slot: Any, head: Any, options: Options) -> jax.Array:
    """Queries [tokens * group rows, F * 128] of KV head `head`; `q`: [slots, K * F, (tokens,) words, packing, 128]."""
    dims = options.dims
    parts = []
    for fold in range(dims.folds):
        index = (slot, head * dims.folds + fold)
        if options.interpret:
            parts.append(q[index].reshape(-1, LANES))
            continue
        words = _rows(q, index)[...]
        parts.append(words if dims.q_packing == 1 else pltpu.bitcast(words, jnp.dtype(dims.q_dtype)))
    return _join(parts)


def scaled(queries: jax.Array, factor: Any, options: Options) -> jax.Array:
    """Queries times the factor of their scores, in their own type.

    Cheaper than to multiply the scores. Decode and prefill do the same, so that a token's result does not depend on
    which of them computes it.
    """
    return (queries.astype(jnp.float32) * factor).astype(options.dims.q_dtype)


def store_queries(q: Ref, slot: Any, head: Any, values: jax.Array, options: Options) -> None:
    """Put [tokens * group rows, F * 128] where `load_queries` reads."""
    dims = options.dims
    values = values.astype(dims.q_dtype)
    for fold in range(dims.folds):
        index = (slot, head * dims.folds + fold)
        part = values[:, fold * LANES : (fold + 1) * LANES]
        if options.interpret:
            q[index] = part.reshape(q.shape[2:])
        elif dims.q_packing == 1:
            _rows(q, index)[...] = part
        else:
            _rows(q, index)[...] = pltpu.bitcast(part, jnp.uint32)


def _rows(q: Ref, index: tuple[Any, ...]) -> Ref:
    """All rows of words of one head, whatever lies between: [n, 128]."""
    view = q.bitcast(jnp.uint32) if q.dtype.itemsize < 4 else q
    view = view.at[index]
    size = 1
    for extent in view.shape[:-1]:
        size *= extent
    return view.reshape(size, LANES)


def scores_of(left: jax.Array, right: jax.Array, options: Options) -> jax.Array:
    """Scores times log2(e) of queries and keys before ALiBi and masks, float32: [rows of left, rows of right].

    Their factor is part of the queries.
    """
    products = lax.dot_general(
        left,
        right,
        (((1,), (1,)), ((), ())),
        precision=options.dot_precision,
        preferred_element_type=jnp.float32,
    )
    if options.soft_cap is None:
        return products
    return (options.soft_cap * LOG2_E) * jnp.tanh(products)
