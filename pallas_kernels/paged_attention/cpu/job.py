"""What an attention call is told, where threads find it, and where keys and values lie."""

from jaxllm.pallas_kernels.numba.calls import FIRST, argument, malloc, result, set_scratch, size
from jaxllm.pallas_kernels.numba.memory import compiled, int32, set_word, word
from jaxllm.pallas_kernels.numba.vectors import HAS_AVX512, LANES

BLOCK = 64
"""Keys of a block of the softmax, counted from the request's first key."""
PANELS = 4 if HAS_AVX512 else 2
"""Vectors of keys, or of a head, that a tile computes at once; five rows of them fill the registers."""
GROUP = PANELS * LANES
"""Keys, or numbers of a head, of such a tile."""
LINE = 64
"""Bytes of a cache line; a vector across two of them takes twice as long."""
TILE = 5 if HAS_AVX512 else 4
"""Rows of queries that go through a block together. With one more LLVM, which begins each step of a tile with all the
scalars, would run out of registers and spill sums."""
ROWS = 192
"""Rows of queries (tokens times query heads of a KV head) of an item, about: what it works on fits the second cache."""
CHUNK_INTS = 4
"""Numbers of a chunk, see `chunks`."""

# Arguments of the call, in order. Queries, keys and values are three arrays, or three times the one that holds all,
# heads behind heads. `INTS` are layer, window, requests, tokens, whether there are sinks and slopes, and query heads;
# `FLOATS` the scale of products, soft cap (0: none), scale of values, then N sinks and N slopes; `COS` and `SIN` have
# no rows if nothing is to be rotated.
Q, NEW_K, NEW_V, CACHE, POSITIONS, QUERY_START, PAGE_TABLE, INTS, FLOATS, COS, SIN = range(11)
SCALE, SOFT_CAP, V_SCALE, EACH_HEAD = 0, 1, 2, 3

# Words of a job: addresses, sizes, switches. Chunks are those of `chunks`.
_ADDRESSES = range(FIRST, FIRST + 10)
J_Q, J_NEW_K, J_NEW_V, J_CACHE, J_POSITIONS, J_START, J_TABLE, J_FLOATS, J_OUT, J_CHUNKS = _ADDRESSES
J_N, J_K, J_H, J_C, J_W, J_BYTES, J_REQUESTS, J_TOKENS, J_CHUNK = range(FIRST + 10, FIRST + 19)
J_WINDOW, J_HAS_SINKS, J_HAS_SLOPES = range(FIRST + 19, FIRST + 22)
# Constants in memory: Numba would compile a function once more for each number that it is called with.
J_BLOCK, J_NO, J_YES = range(FIRST + 22, FIRST + 25)
# Keys whose values lie one after another; items with results, those that write keys and values, how many of these are
# done.
J_RUN, J_RESULTS, J_WRITES, J_WRITTEN = range(FIRST + 25, FIRST + 29)
# Addresses of angles, 0 if there are none; numbers from one token's queries to the next one's, of keys and values too.
J_COS, J_SIN, J_Q_STRIDE, J_KV_STRIDE = range(FIRST + 29, FIRST + 33)
WORDS = 33


@compiled
def read_call(frame: int, job: int, bytes_each: int) -> None:
    """Write down what the items need; `bytes_each` of a number in the cache."""
    ints = argument(frame, INTS)
    heads, page = size(frame, CACHE, 3), size(frame, CACHE, 4)
    num_heads, head_size = int32(ints, 6), size(frame, Q, 2)
    # Where keys begin, and where values do, if one array holds all.
    behind, next_behind = (num_heads, num_heads + heads) if size(frame, NEW_K, 1) > heads else (0, 0)
    layer_bytes = size(frame, CACHE, 1) * 2 * heads * page * bytes_each
    set_word(job, J_Q, argument(frame, Q))
    set_word(job, J_NEW_K, argument(frame, NEW_K) + behind * head_size * bytes_each)
    set_word(job, J_NEW_V, argument(frame, NEW_V) + next_behind * head_size * bytes_each)
    set_word(job, J_Q_STRIDE, size(frame, Q, 1) * head_size)
    set_word(job, J_KV_STRIDE, size(frame, NEW_K, 1) * head_size)
    set_word(job, J_COS, argument(frame, COS) if size(frame, COS, 0) > 0 else 0)
    set_word(job, J_SIN, argument(frame, SIN))
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
    set_word(job, J_CHUNKS, malloc(4 * CHUNK_INTS * (int32(ints, 3) + 1)))
    set_word(job, J_RUN, _run(page // head_size))
    # See `scratch_parts`, which begins at a cache line.
    tiles = _tiles(tokens * (num_heads // heads)) + _tiles(num_heads // heads)
    addresses = 2 * BLOCK // LANES * (2 + head_size // LANES)
    set_scratch(job, LINE + tiles * tile_bytes(head_size) + 4 * (LANES + TILE * BLOCK) + 8 * addresses)


@compiled
def tile_bytes(head_size: int) -> int:
    """Bytes of a tile of a `state`."""
    return 4 * (LANES + TILE * (LANES + 2 * head_size))


@compiled
def _tiles(rows: int) -> int:
    return (rows + TILE - 1) // TILE


@compiled
def _run(page_size: int) -> int:
    """Keys of a block that surely lie in one page, if counted from the block's first."""
    if BLOCK % page_size == 0:
        return page_size
    return BLOCK if page_size % BLOCK == 0 else 16


@compiled
def scratch_parts(job: int, scratch: int) -> tuple[int, int, int]:
    """What an item works in: the state of its rows, that of the rows of a single token, and what `block_parts` has."""
    group = word(job, J_N) // word(job, J_K)
    state = (scratch + LINE - 1) // LINE * LINE
    own = state + _tiles(word(job, J_CHUNK) * group) * tile_bytes(word(job, J_H))
    return state, own, own + _tiles(group) * tile_bytes(word(job, J_H))


@compiled
def block_parts(job: int, memory: int) -> tuple[int, int, int, int, int, int, int, int]:
    """What a block needs: a vector, scores [TILE, BLOCK], then addresses: of keys and of values, of those of the next
    block, of the values' runs, and of what is needed after each.
    """
    scores = memory + 4 * LANES
    keys = scores + 4 * TILE * BLOCK
    block = 8 * (BLOCK // LANES)
    runs = keys + 4 * block
    nexts = runs + block * (word(job, J_H) // LANES)
    return memory, scores, keys, keys + block, keys + 2 * block, keys + 3 * block, runs, nexts


@compiled
def first_token(job: int, row: int) -> int:
    """First token of a row; that of the next row is its end."""
    return int32(word(job, J_START), row)


@compiled
def key_and_value_at(job: int, row: int, position: int, head: int) -> tuple[int, int]:
    """Addresses of a head's key and value at a position of a row.

    The numbers of a key lie a page size apart, those of a value side by side.
    """
    page_size, head_size, heads = word(job, J_C), word(job, J_H), word(job, J_K)
    index = position // page_size
    offset = position - index * page_size
    page = int32(word(job, J_TABLE), row * word(job, J_W) + index)
    part = (page * 2 * heads + head) * page_size * head_size
    key, value = part + offset, part + (heads * page_size + offset) * head_size
    return word(job, J_CACHE) + key * word(job, J_BYTES), word(job, J_CACHE) + value * word(job, J_BYTES)


@compiled
def first_seen(job: int, position: int) -> int:
    """The first key that a query at a position may see."""
    window = word(job, J_WINDOW)
    return max(position - window + 1, 0) if window > 0 else 0
