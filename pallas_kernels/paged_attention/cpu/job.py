"""What an attention call is told, where threads find it, and where keys and values lie."""

from jaxllm.pallas_kernels.cpu.calls import FIRST, argument, malloc, result, set_scratch, size
from jaxllm.pallas_kernels.cpu.memory import compiled, int32, set_int32, set_word, word
from jaxllm.pallas_kernels.cpu.vectors import HAS_AVX512, LANES

BLOCK = 128
"""Keys of a block of the softmax, counted from the request's first key."""
PANELS = 4 if HAS_AVX512 else 2
"""Vectors of keys, or of a head, that a tile computes at once; six rows of them fill the registers."""
GROUP = PANELS * LANES
"""Keys, or numbers of a head, of such a tile."""
ROWS = 192
"""Rows of queries (tokens times query heads of a KV head) of an item, about: what it works on fits the second cache."""

# Arguments of the call, in order. `INTS` are layer, window, requests, tokens, and whether there are sinks and slopes;
# `FLOATS` the scale of products, soft cap (0: none), scale of values, then N sinks and N slopes.
Q, NEW_K, NEW_V, CACHE, POSITIONS, QUERY_START, PAGE_TABLE, INTS, FLOATS = range(9)
SCALE, SOFT_CAP, V_SCALE, EACH_HEAD = 0, 1, 2, 3

# Words of a job: addresses, sizes, switches. A chunk is (row, first token): a part of a row that makes an item for each
# KV head.
_ADDRESSES = range(FIRST, FIRST + 10)
J_Q, J_NEW_K, J_NEW_V, J_CACHE, J_POSITIONS, J_START, J_TABLE, J_FLOATS, J_OUT, J_CHUNKS = _ADDRESSES
J_N, J_K, J_H, J_C, J_W, J_BYTES, J_REQUESTS, J_TOKENS, J_CHUNK = range(FIRST + 10, FIRST + 19)
J_WINDOW, J_HAS_SINKS, J_HAS_SLOPES = range(FIRST + 19, FIRST + 22)
# Constants in memory: Numba would compile a function once more for each number that it is called with.
J_BLOCK, J_NO, J_YES = range(FIRST + 22, FIRST + 25)
WORDS = 25


@compiled
def read_call(frame: int, job: int, bytes_each: int) -> None:
    """Write down what the items need; `bytes_each` of a number in the cache."""
    ints = argument(frame, INTS)
    heads, page = size(frame, NEW_K, 1), size(frame, CACHE, 4)
    num_heads, head_size = size(frame, Q, 1), size(frame, Q, 2)
    layer_bytes = size(frame, CACHE, 1) * 2 * heads * page * bytes_each
    set_word(job, J_Q, argument(frame, Q))
    set_word(job, J_NEW_K, argument(frame, NEW_K))
    set_word(job, J_NEW_V, argument(frame, NEW_V))
    set_word(job, J_CACHE, argument(frame, CACHE) + int32(ints, 0) * layer_bytes)
    set_word(job, J_POSITIONS, argument(frame, POSITIONS))
    set_word(job, J_START, argument(frame, QUERY_START))
    set_word(job, J_TABLE, argument(frame, PAGE_TABLE))
    set_word(job, J_FLOATS, argument(frame, FLOATS))
    set_word(job, J_OUT, result(frame, 0))
    set_word(job, J_N, num_heads)
    set_word(job, J_K, heads)
    set_word(job, J_H, head_size)
    set_word(job, J_C, page // head_size)
    set_word(job, J_W, size(frame, PAGE_TABLE, 1))
    set_word(job, J_BYTES, bytes_each)
    set_word(job, J_WINDOW, int32(ints, 1))
    set_word(job, J_REQUESTS, int32(ints, 2))
    set_word(job, J_TOKENS, int32(ints, 3))
    set_word(job, J_HAS_SINKS, int32(ints, 4))
    set_word(job, J_HAS_SLOPES, int32(ints, 5))
    set_word(job, J_BLOCK, BLOCK)
    set_word(job, J_NO, 0)
    set_word(job, J_YES, 1)
    tokens = max(min(ROWS // (num_heads // heads), int32(ints, 3)), 1)
    set_word(job, J_CHUNK, tokens)
    set_word(job, J_CHUNKS, malloc(8 * (int32(ints, 3) + 1)))
    rows = tokens * (num_heads // heads)
    # See `kernel.Scratch`: queries, sums, scores, maxima and totals, addresses.
    set_scratch(job, 4 * rows * (2 * head_size + BLOCK + 2) + 8 * 2 * PANELS + 8)


@compiled
def first_token(job: int, row: int) -> int:
    """First token of a row; that of the next row is its end."""
    return int32(word(job, J_START), row)


@compiled
def plan_chunks(job: int) -> int:
    """Write down the chunks of all rows; their number."""
    chunks = 0
    for row in range(word(job, J_REQUESTS)):
        for first in range(first_token(job, row), first_token(job, row + 1), word(job, J_CHUNK)):
            set_int32(word(job, J_CHUNKS), 2 * chunks, row)
            set_int32(word(job, J_CHUNKS), 2 * chunks + 1, first)
            chunks += 1
    return chunks


@compiled
def keys_at(job: int, row: int, position: int, head: int) -> int:
    """Address of a head's key at a position of a row: its numbers lie a page size apart."""
    page_size = word(job, J_C)
    page = int32(word(job, J_TABLE), row * word(job, J_W) + position // page_size)
    part = (page * 2 * word(job, J_K) + head) * page_size * word(job, J_H)
    return word(job, J_CACHE) + (part + position % page_size) * word(job, J_BYTES)


@compiled
def values_at(job: int, row: int, position: int, head: int) -> int:
    """Address of a head's value at a position of a row: its numbers lie side by side."""
    page_size, head_size = word(job, J_C), word(job, J_H)
    page = int32(word(job, J_TABLE), row * word(job, J_W) + position // page_size)
    part = ((page * 2 + 1) * word(job, J_K) + head) * page_size * head_size
    return word(job, J_CACHE) + (part + position % page_size * head_size) * word(job, J_BYTES)


@compiled
def first_seen(job: int, position: int) -> int:
    """The first key that a query at a position may see."""
    window = word(job, J_WINDOW)
    return max(position - window + 1, 0) if window > 0 else 0
