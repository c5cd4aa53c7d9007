"""The arguments of a call of paged attention, and where keys and values lie."""

from jaxllm.pallas_kernels.cpu_common.attention_words import (
    BLOCK,
    CHUNK_INTS,
    LINE,
    W_BLOCK,
    W_BYTES,
    W_C,
    W_CACHE,
    W_CHUNK,
    W_CHUNKS,
    W_COLUMN,
    W_COS,
    W_FLOATS,
    W_H,
    W_HAS_SINKS,
    W_HAS_SLOPES,
    W_HEADS,
    W_K,
    W_KV_STRIDE,
    W_N,
    W_NEW_HEADS,
    W_NEW_K,
    W_NEW_V,
    W_NO,
    W_OUT,
    W_PART,
    W_POSITIONS,
    W_Q,
    W_Q_STRIDE,
    W_REQUESTS,
    W_RUN,
    W_SIN,
    W_START,
    W_TABLE,
    W_TOKENS,
    W_WIDTH,
    W_WINDOW,
    W_YES,
)
from jaxllm.pallas_kernels.cpu_common.calls import argument, malloc, result, set_scratch, size
from jaxllm.pallas_kernels.cpu_common.memory import compiled, int32, set_word, word
from jaxllm.pallas_kernels.cpu_common.vectors import HAS_AVX512, LANES

TILE = 5 if HAS_AVX512 else 4
"""Rows of queries that go through a block together. With one more LLVM, which begins each step of a tile with all the
scalars, would run out of registers and spill sums."""
ROWS = 192
"""Rows of queries (tokens times query heads of a KV head) of an item, about: what it works on fits the second cache."""

# Arguments of the call, in order. Queries, keys and values are three arrays, or three times the one that holds all,
# heads after heads. `INTS` are layer, window, requests, tokens, whether there are sinks and slopes, query heads,
# whether keys and values are written (their address is 0 if they are not), bytes of a token's scale after a head, and
# KV heads of attention; `FLOATS` the scale of products, soft cap (0: none), scale of values, then N sinks and N slopes;
# `COS` and `SIN` have no rows if nothing is to be rotated; `UNTIL` is there for the kernel alone that takes spans. In
# its place another kernel has `INDEX`, queries of an index, and `CHOICE`: keys of a block, blocks that are chosen, last
# ones that always are.
Q, NEW_K, NEW_V, CACHE, POSITIONS, QUERY_START, PAGE_TABLE, INTS, FLOATS, COS, SIN, UNTIL = range(12)
INDEX, CHOICE = 11, 12


@compiled
def read_call(frame: int, work: int, bytes_each: int, source_bytes: int, column_bytes: int, most: int) -> None:
    """Write down what the items need, of up to `most` tokens each.

    `bytes_each` of a number in the cache, `source_bytes` of a new one, `column_bytes` of what products take at a time:
    a number, or a pair of them.
    """
    ints = argument(frame, INTS)
    cached, page, heads = size(frame, CACHE, 3), size(frame, CACHE, 4), int32(ints, 9)
    num_heads, head_size = int32(ints, 6), size(frame, Q, 2)
    layer_bytes = size(frame, CACHE, 1) * 2 * cached * page * bytes_each
    _read_new(frame, work, source_bytes)
    set_word(work, W_COS, argument(frame, COS) if size(frame, COS, 0) > 0 else 0)
    set_word(work, W_SIN, argument(frame, SIN))
    set_word(work, W_CACHE, argument(frame, CACHE) + int32(ints, 0) * layer_bytes)
    set_word(work, W_POSITIONS, argument(frame, POSITIONS))
    set_word(work, W_START, argument(frame, QUERY_START))
    set_word(work, W_TABLE, argument(frame, PAGE_TABLE))
    set_word(work, W_FLOATS, argument(frame, FLOATS))
    set_word(work, W_OUT, result(frame, 0))
    set_word(work, W_N, num_heads)
    set_word(work, W_K, heads)
    set_word(work, W_HEADS, cached)
    set_word(work, W_H, head_size)
    page_size = page // (head_size + int32(ints, 8) // bytes_each)
    set_word(work, W_C, page_size)
    set_word(work, W_PART, page * bytes_each)
    set_word(work, W_WIDTH, size(frame, PAGE_TABLE, 1))
    set_word(work, W_BYTES, bytes_each)
    set_word(work, W_COLUMN, column_bytes)
    set_word(work, W_WINDOW, int32(ints, 1))
    set_word(work, W_REQUESTS, int32(ints, 2))
    set_word(work, W_TOKENS, int32(ints, 3))
    set_word(work, W_HAS_SINKS, int32(ints, 4))
    set_word(work, W_HAS_SLOPES, int32(ints, 5))
    set_word(work, W_BLOCK, BLOCK)
    set_word(work, W_NO, 0)
    set_word(work, W_YES, 1)
    tokens = max(min(ROWS // (num_heads // heads), int32(ints, 3), most), 1)
    set_word(work, W_CHUNK, tokens)
    set_word(work, W_CHUNKS, malloc(4 * CHUNK_INTS * (int32(ints, 3) + 1)))
    set_word(work, W_RUN, run_of(page_size))
    set_scratch(work, scratch_bytes(work))


@compiled
def _read_new(frame: int, work: int, source_bytes: int) -> None:
    """Where queries, new keys and values are."""
    ints, heads, head_size = argument(frame, INTS), size(frame, CACHE, 3), size(frame, Q, 2)
    num_heads, is_one = int32(ints, 6), size(frame, NEW_K, 1) > heads
    # Where keys begin, and where values do, if one array holds all.
    behind, next_behind = (num_heads, num_heads + heads) if is_one else (0, 0)
    set_word(work, W_NEW_HEADS, heads if is_one else size(frame, NEW_K, 1))
    set_word(work, W_Q, argument(frame, Q))
    set_word(work, W_NEW_K, argument(frame, NEW_K) + behind * head_size * source_bytes if int32(ints, 7) else 0)
    set_word(work, W_NEW_V, argument(frame, NEW_V) + next_behind * head_size * source_bytes)
    set_word(work, W_Q_STRIDE, size(frame, Q, 1) * head_size)
    set_word(work, W_KV_STRIDE, size(frame, NEW_K, 1) * head_size)


@compiled
def scratch_bytes(work: int) -> int:
    """Bytes of what `scratch_parts` has, which begins at a cache line."""
    group, head_size = word(work, W_N) // word(work, W_K), word(work, W_H)
    tiles = _tiles(word(work, W_CHUNK) * group) + _tiles(group)
    return LINE + tiles * tile_bytes(head_size) + block_end(work, 0)


@compiled
def tile_bytes(head_size: int) -> int:
    """Bytes of a tile of a `state`."""
    return 4 * (LANES + TILE * (LANES + 2 * head_size))


@compiled
def _tiles(rows: int) -> int:
    return (rows + TILE - 1) // TILE


@compiled
def run_of(page_size: int) -> int:
    """Keys of a block that surely lie in one page, if counted from the block's first."""
    if BLOCK % page_size == 0:
        return page_size
    return BLOCK if page_size % BLOCK == 0 else 16


@compiled
def scratch_parts(work: int, scratch: int) -> tuple[int, int, int]:
    """What an item works in: the state of its rows, that of the rows of a single token, and what `block_parts` has."""
    group = word(work, W_N) // word(work, W_K)
    state = (scratch + LINE - 1) // LINE * LINE
    own = state + _tiles(word(work, W_CHUNK) * group) * tile_bytes(word(work, W_H))
    return state, own, own + _tiles(group) * tile_bytes(word(work, W_H))


@compiled
def block_parts(work: int, memory: int) -> tuple[int, int, int, int, int, int, int, int]:
    """What a block needs: a vector, scores [TILE, BLOCK], then addresses: of keys and of values, each followed by those
    of their scales, of the same of the next block, of the values' runs, and of what is needed after each.
    """
    scores = memory + 4 * LANES
    keys = scores + 4 * TILE * BLOCK
    block = 8 * (BLOCK // LANES)
    runs = keys + 8 * block
    nexts = runs + block * (word(work, W_H) // LANES)
    return memory, scores, keys, keys + 2 * block, keys + 4 * block, keys + 6 * block, runs, nexts


@compiled
def block_end(work: int, memory: int) -> int:
    """Where what `block_parts` has ends."""
    addresses = 2 * BLOCK // LANES * (4 + word(work, W_H) // LANES)
    return memory + 4 * (LANES + TILE * BLOCK) + 8 * addresses


@compiled
def key_and_value_at(work: int, row: int, position: int, head: int) -> tuple[int, int, int, int]:
    """Addresses of a head's key and value at a position of a row, and of their scales, if they have some.

    The numbers of a key, or its pairs, lie a page size apart, those of a value side by side; after all of a head lie
    its scales. In a cache of pairs the address of a value is right at even positions.
    """
    page_size, head_size, heads, bytes_each = word(work, W_C), word(work, W_H), word(work, W_HEADS), word(work, W_BYTES)
    index = position // page_size
    offset = position - index * page_size
    page = int32(word(work, W_TABLE), row * word(work, W_WIDTH) + index)
    keys = word(work, W_CACHE) + (page * 2 * heads + head) * word(work, W_PART)
    values = keys + heads * word(work, W_PART)
    scale = page_size * head_size * bytes_each + 4 * offset
    return keys + offset * word(work, W_COLUMN), values + offset * head_size * bytes_each, keys + scale, values + scale
