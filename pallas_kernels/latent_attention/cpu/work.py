"""The arguments of a call, where threads find them, and where latents lie.

Words of the work descriptor are those of paged attention, whose chunks and softmax are used as they are: there are as
many KV heads as groups of query heads, and all have the same keys. Some more words follow.
"""

from jaxllm.pallas_kernels.cpu_common.attention_words import (
    BLOCK,
    CHUNK_INTS,
    LINE,
    W_BYTES,
    W_C,
    W_CACHE,
    W_CHUNK,
    W_CHUNKS,
    W_FLOATS,
    W_H,
    W_HAS_SINKS,
    W_HAS_SLOPES,
    W_K,
    W_N,
    W_NEW_K,
    W_NO,
    W_OUT,
    W_POSITIONS,
    W_Q,
    W_REQUESTS,
    W_START,
    W_TABLE,
    W_TOKENS,
    W_WIDTH,
    W_WINDOW,
)
from jaxllm.pallas_kernels.cpu_common.attention_words import WORDS as PAGED_WORDS
from jaxllm.pallas_kernels.cpu_common.calls import FIRST, THREADS, argument, malloc, result, set_scratch, size
from jaxllm.pallas_kernels.cpu_common.memory import compiled, int32, set_word, word
from jaxllm.pallas_kernels.cpu_common.vectors import LANES

TILE = 4
"""Rows of queries that go through a block together."""
ROWS = 64
"""Rows of queries (tokens times heads) of an item, at most: with the latents of a block, half a MB to work in."""
FEWEST = 8
"""Heads of an item, at least, where heads are shared out because there are few requests."""
RUN = 16
"""Keys that surely lie in one page, if counted from a block's first."""
RUNS = BLOCK // RUN

# Arguments of the call, in order. `INTS` are layer, requests, tokens, window, whether there are sinks, whether latents
# are written; `FLOATS` are those of paged attention. For chosen keys `PAGE_TABLE` has their places in place of pages,
# and `POSITIONS` one less than their number.
Q_LATENT, Q_ROPE, NEW_LATENT, NEW_ROPE, CACHE, POSITIONS, QUERY_START, PAGE_TABLE, INTS, FLOATS = range(10)

# Sizes of a latent and of a rotary part (`W_H` is both together), addresses of rotary parts; numbers from one token to
# the next one in the cache, and from one key to the next one of a block as products read it.
W_Z, W_Y, W_Q_ROPE, W_NEW_ROPE, W_TOKEN, W_APART = range(FIRST + PAGED_WORDS, FIRST + PAGED_WORDS + 6)
WORDS = PAGED_WORDS + 6


@compiled
def read_call(frame: int, work: int, bytes_each: int, copies: bool, is_chosen: bool) -> None:
    """Write down what the items need; `bytes_each` of a number in the cache.

    Products read copies of keys, or keys where they are; for chosen keys, pages are single tokens.
    """
    ints = argument(frame, INTS)
    page_size, token_size = size(frame, CACHE, 2), size(frame, CACHE, 3)
    latent, rope = size(frame, Q_LATENT, 2), size(frame, Q_ROPE, 2)
    num_heads, tokens = size(frame, Q_LATENT, 1), int32(ints, 2)
    layer_bytes = size(frame, CACHE, 1) * page_size * token_size * bytes_each
    set_word(work, W_Q, argument(frame, Q_LATENT))
    set_word(work, W_Q_ROPE, argument(frame, Q_ROPE))
    set_word(work, W_NEW_K, argument(frame, NEW_LATENT))
    set_word(work, W_NEW_ROPE, argument(frame, NEW_ROPE))
    set_word(work, W_CACHE, argument(frame, CACHE) + int32(ints, 0) * layer_bytes)
    set_word(work, W_POSITIONS, argument(frame, POSITIONS))
    set_word(work, W_START, argument(frame, QUERY_START))
    set_word(work, W_TABLE, argument(frame, PAGE_TABLE))
    set_word(work, W_FLOATS, argument(frame, FLOATS))
    set_word(work, W_OUT, result(frame, 0))
    set_word(work, W_N, num_heads)
    set_word(work, W_H, latent + rope)
    set_word(work, W_Z, latent)
    set_word(work, W_Y, rope)
    set_word(work, W_TOKEN, token_size)
    set_word(work, W_APART, latent + rope if copies else token_size)
    set_word(work, W_C, 1 if is_chosen else page_size)
    set_word(work, W_WIDTH, size(frame, PAGE_TABLE, 1))
    set_word(work, W_BYTES, bytes_each)
    set_word(work, W_REQUESTS, int32(ints, 1))
    set_word(work, W_TOKENS, tokens)
    set_word(work, W_WINDOW, int32(ints, 3))
    set_word(work, W_HAS_SINKS, int32(ints, 4))
    set_word(work, W_HAS_SLOPES, 0)
    set_word(work, W_NO, 0)
    groups = _groups(num_heads, int32(ints, 1), tokens, word(work, THREADS))
    most = max(min(ROWS // (num_heads // groups), tokens), 1)
    set_word(work, W_K, groups)
    set_word(work, W_CHUNK, most)
    set_word(work, W_CHUNKS, malloc(4 * CHUNK_INTS * (tokens + 1)))
    # See `scratch_parts`, which begins at a cache line.
    tiles = _tiles(most * (num_heads // groups)) + _tiles(num_heads // groups)
    block = 4 * LANES + 4 * BLOCK * (latent + rope) + 8 * 3 * RUNS * (1 + LANES)
    set_scratch(work, LINE + tiles * tile_bytes(work) + block)


@compiled
def _groups(num_heads: int, requests: int, tokens: int, threads: int) -> int:
    """Groups of heads: a divisor of their number that makes items small enough, and enough of them for all threads."""
    items, groups = max(requests, tokens * num_heads // ROWS), 1
    while groups < num_heads and (
        num_heads % groups
        or num_heads // groups > ROWS
        or (threads > 1 and items * groups < 2 * threads and num_heads // groups >= 2 * FEWEST)
    ):
        groups += 1
    return groups


@compiled
def tile_bytes(work: int) -> int:
    """Bytes of a tile of a `state`."""
    return 4 * (LANES + TILE * (LANES + BLOCK + word(work, W_H) + word(work, W_Z)))


@compiled
def _tiles(rows: int) -> int:
    return (rows + TILE - 1) // TILE


@compiled
def scratch_parts(work: int, scratch: int) -> tuple[int, int, int]:
    """What an item works in: the state of its rows, that of the rows of a single token, and what `block_parts` has."""
    group = word(work, W_N) // word(work, W_K)
    state = (scratch + LINE - 1) // LINE * LINE
    own = state + _tiles(word(work, W_CHUNK) * group) * tile_bytes(work)
    return state, own, own + _tiles(group) * tile_bytes(work)


@compiled
def block_parts(work: int, memory: int) -> tuple[int, int, int, int, int, int]:
    """The buffers of a block: its latents in float32 [BLOCK, S], or as `join_pairs` has them, a vector, then addresses:
    of its runs in the cache, of those of the next block, of vectors of its values, and of what is needed after each.
    """
    decays = memory + 4 * BLOCK * word(work, W_H)
    pages = decays + 4 * LANES
    runs = pages + 2 * 8 * RUNS
    return memory, decays, pages, pages + 8 * RUNS, runs, runs + 8 * RUNS * LANES


@compiled
def latent_at(work: int, row: int, position: int) -> int:
    """Address of a token's latent in the cache; its rotary part follows, then the next token of the page."""
    page_size = word(work, W_C)
    index = position // page_size
    page = int32(word(work, W_TABLE), row * word(work, W_WIDTH) + index)
    token = page * page_size + position - index * page_size
    return word(work, W_CACHE) + token * word(work, W_TOKEN) * word(work, W_BYTES)
