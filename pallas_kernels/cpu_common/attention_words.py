"""Where threads find what a call of attention is told: words of its work descriptor, and how keys are cut.

Paged and latent attention have the same words, so that they share chunks and the softmax; latent attention has more.
"""

from jaxllm.pallas_kernels.cpu_common.calls import FIRST
from jaxllm.pallas_kernels.cpu_common.memory import compiled, int32, word
from jaxllm.pallas_kernels.cpu_common.vectors import HAS_AVX512, LANES

BLOCK = 64
"""Keys of a block of the softmax, counted from the request's first key."""
VECTORS = 4 if HAS_AVX512 else 2
"""Vectors of keys, or of a head, that a tile computes at once; five rows of them fill the registers."""
GROUP = VECTORS * LANES
"""Keys, or numbers of a head, of such a tile."""
LINE = 64
"""Bytes of a cache line; a vector across two of them takes twice as long."""
CHUNK_INTS = 4
"""Numbers of a chunk, see `chunks`."""

# Numbers of the call's floats: the scale of products, soft cap (0: none), scale of values, then N sinks and N slopes.
SCALE, SOFT_CAP, V_SCALE, EACH_HEAD = 0, 1, 2, 3

# Words of the work descriptor: addresses, sizes, switches. Chunks are those of `chunks`.
_ADDRESSES = range(FIRST, FIRST + 10)
W_Q, W_NEW_K, W_NEW_V, W_CACHE, W_POSITIONS, W_START, W_TABLE, W_FLOATS, W_OUT, W_CHUNKS = _ADDRESSES
W_N, W_K, W_H, W_C, W_WIDTH, W_BYTES, W_REQUESTS, W_TOKENS, W_CHUNK = range(FIRST + 10, FIRST + 19)
W_WINDOW, W_HAS_SINKS, W_HAS_SLOPES = range(FIRST + 19, FIRST + 22)
# Constants in memory: Numba would compile a function once more for each number that it is called with.
W_BLOCK, W_NO, W_YES = range(FIRST + 22, FIRST + 25)
# Keys whose values lie one after another; items with results, those that write keys and values, how many of these are
# done.
W_RUN, W_RESULTS, W_WRITES, W_WRITTEN = range(FIRST + 25, FIRST + 29)
# Addresses of angles, 0 if there are none; numbers from one token's queries to the next one's, of keys and values too.
W_COS, W_SIN, W_Q_STRIDE, W_KV_STRIDE = range(FIRST + 29, FIRST + 33)
# Bytes of all keys, or values, of a head in a page, scales included.
W_PART = FIRST + 33
# Address of the ends of what tokens see, where some see later ones.
W_UNTIL = FIRST + 34
# Bytes from a number of a row that products read to the next one: from a pair where pairs lie together.
W_COLUMN = FIRST + 35
# KV heads of the cache, which may be more than those of attention, and of these as many as are written.
W_HEADS, W_NEW_HEADS = range(FIRST + 36, FIRST + 38)
# Address of an index's queries, keys of a block that it chooses, how many it chooses, how many last ones always.
W_INDEX, W_INDEX_BLOCK, W_INDEX_TOP, W_INDEX_LOCAL = range(FIRST + 38, FIRST + 42)
# In how many groups the KV heads of a token choose: those of a group read its keys together.
W_INDEX_GROUPS = FIRST + 42
WORDS = FIRST + 43


@compiled
def first_token(work: int, row: int) -> int:
    """First token of a row; that of the next row is its end."""
    return int32(word(work, W_START), row)


@compiled
def first_seen(work: int, position: int) -> int:
    """The first key that a query at a position may see."""
    window = word(work, W_WINDOW)
    return max(position - window + 1, 0) if window > 0 else 0
