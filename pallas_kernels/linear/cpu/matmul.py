"""Products of activations with packed weights, see `packed`, and what comes right before and after them.

A few rows are bound by memory: every weight is read once, and what follows is fetched ahead. Many rows are bound by
arithmetic: three blocks stay in the second cache while a chunk of rows goes by, and every tile fetches its share of the
next three, so that memory has as much to do at any time. Either way a result is the same sum in the same order, so it
does not depend on how many rows there are.
"""

from typing import Any

from jaxllm.pallas_kernels.cpu_common.calls import FIRST, THREADS, Kernel, argument, result, size
from jaxllm.pallas_kernels.cpu_common.memory import compiled, fetch, fetch_add, int32, set_word, word, zero_bytes
from jaxllm.pallas_kernels.linear.cpu import BLOCK
from jaxllm.pallas_kernels.linear.cpu.rows import gate, normalise
from jaxllm.pallas_kernels.linear.cpu.strip import BLOCKS, DEPTH, ROWS, make_strip

CHUNK = 16 * ROWS
"""Rows of an item."""
PREPARED = 16
"""Rows that are prepared at a time."""

# Arguments of the call: x [T, in], or [T, 2 in] if it is to be gated; weights [L, P, in, 16]; int32 [2]: rows in use,
# layer; weight of the norm [in], or [0] for none; its epsilon float32 [1]; what is added, [T, out], or [0, 0].
# Results: y [T, out], and the rows as prepared [T, in], or [0, 0] if x is taken as it is.
_X, _WEIGHT, _INTS, _NORM, _EPSILON, _PLUS = range(6)
# Words of the work descriptor.
_X_ROWS, _IN, _NORM_WEIGHT, _EPS, _PLUS_ROWS, _W, _Y, _T, _K, _P, _PREPARES, _CHUNKS, _NEXT, _DONE = range(
    FIRST, FIRST + 14
)
WORDS = 14


def _make_plan(bytes_each: int) -> Any:
    @compiled
    def plan(frame: int, work: int) -> int:
        rows, layer = int32(argument(frame, _INTS), 0), int32(argument(frame, _INTS), 1)
        blocks, depth = size(frame, _WEIGHT, 1), size(frame, _WEIGHT, 2)
        y, columns = result(frame, 0), blocks * BLOCK
        zero_bytes(y + 4 * rows * columns, 4 * (size(frame, _X, 0) - rows) * columns)
        is_normed = size(frame, _NORM, 0) > 0
        is_prepared = is_normed or size(frame, _X, 1) != depth
        prepares = (rows + PREPARED - 1) // PREPARED if is_prepared else 0
        chunks = (rows + CHUNK - 1) // CHUNK
        set_word(work, _X_ROWS, argument(frame, _X))
        set_word(work, _IN, result(frame, 1) if is_prepared else argument(frame, _X))
        set_word(work, _NORM_WEIGHT, argument(frame, _NORM) if is_normed else 0)
        set_word(work, _EPS, argument(frame, _EPSILON))
        set_word(work, _PLUS_ROWS, argument(frame, _PLUS) if size(frame, _PLUS, 0) > 0 else 0)
        set_word(work, _W, argument(frame, _WEIGHT) + layer * blocks * depth * BLOCK * bytes_each)
        set_word(work, _Y, y)
        set_word(work, _T, rows)
        set_word(work, _K, depth)
        set_word(work, _P, blocks)
        set_word(work, _PREPARES, prepares)
        set_word(work, _CHUNKS, chunks)
        # Threads take items in turn: how far it is to the strip that this one will have next.
        strips = (word(work, THREADS) + chunks - 1) // max(chunks, 1)
        set_word(work, _NEXT, strips * BLOCKS * depth * BLOCK * bytes_each)
        set_word(work, _DONE, 0)
        return prepares + (blocks + BLOCKS - 1) // BLOCKS * chunks

    return plan


@compiled
def _prepare(work: int, first: int, last: int) -> None:
    """Normalise, or gate, rows from `first` up to `last`."""
    depth, source, to = word(work, _K), word(work, _X_ROWS), word(work, _IN)
    norm = word(work, _NORM_WEIGHT)
    for row in range(first, last):
        if norm:
            normalise(to + 4 * row * depth, source + 4 * row * depth, depth, norm, word(work, _EPS))
        else:
            gate(to + 4 * row * depth, source + 8 * row * depth, depth)


def _make_blocks(kind: str, bytes_each: int, blocks: int) -> Any:
    """Some rows times a few blocks from number `block` on."""
    strip, step = make_strip(kind, bytes_each, blocks), BLOCK * bytes_each

    @compiled
    def multiply(work: int, block: int, first: int, last: int) -> None:
        depth, columns, plus = word(work, _K), word(work, _P) * BLOCK, word(work, _PLUS_ROWS)
        stride, place = depth * step, 4 * (first * columns + block * BLOCK)
        is_last = block * stride + word(work, _NEXT) >= word(work, _P) * stride
        # The next strip follows, or nothing but these blocks again.
        after = (0 if is_last else word(work, _NEXT)) - (depth - 1) // DEPTH * DEPTH * step
        x, weights = word(work, _IN) + 4 * first * depth, word(work, _W) + block * stride
        strip(x, weights, word(work, _Y) + place, plus + place if plus else 0, depth, columns, last - first, after)

    return multiply


def make_kernel(kind: str, bytes_each: int) -> Kernel:
    """The kernel for weights of a type (NumPy's name) of some bytes each."""
    wide = _make_blocks(kind, bytes_each, BLOCKS)
    narrow = wide if BLOCKS == 1 else _make_blocks(kind, bytes_each, 1)

    @compiled
    def item(work: int, index: int, scratch: int) -> None:
        rows, prepares, chunks = word(work, _T), word(work, _PREPARES), word(work, _CHUNKS)
        if index < prepares:
            _prepare(work, index * PREPARED, min(index * PREPARED + PREPARED, rows))
            fetch_add(work, _DONE, 1)
            return
        # These items come first, so whoever has taken one is at work on it.
        while fetch(work, _DONE) < prepares:
            pass
        block = (index - prepares) // chunks * BLOCKS
        first = (index - prepares) % chunks * CHUNK
        last = min(first + CHUNK, rows)
        if block + BLOCKS <= word(work, _P):
            wide(work, block, first, last)
        else:
            for each in range(block, word(work, _P)):
                narrow(work, each, first, last)

    @compiled
    def finish(work: int) -> None:
        pass

    return Kernel(WORDS, _make_plan(bytes_each), item, finish)
