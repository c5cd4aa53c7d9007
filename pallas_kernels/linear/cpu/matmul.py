"""Products of activations with packed weights, see `packed`, and what comes right before and after them.

A few rows are bound by memory: every weight is read once, and what follows is fetched ahead. Many rows are bound by
arithmetic: three blocks stay in the second cache while a chunk of rows goes by, and every tile fetches its share of the
next three, so that memory has as much to do at any time. Either way a result is the same sum in the same order, so it
does not depend on how many rows there are.
"""

from typing import Any

from jaxllm.pallas_kernels.cpu_common.calls import FIRST, THREADS, Kernel, argument, result, set_scratch, size
from jaxllm.pallas_kernels.cpu_common.memory import compiled, fetch, fetch_add, int32, set_word, word, zero_bytes
from jaxllm.pallas_kernels.linear.cpu import BLOCK
from jaxllm.pallas_kernels.linear.cpu.form import Form
from jaxllm.pallas_kernels.linear.cpu.rows import gate, gate_narrow, normalise, normalise_narrow
from jaxllm.pallas_kernels.linear.cpu.strip import BLOCKS, DEPTH, ROWS, make_strip

CHUNK = 16 * ROWS
"""Rows of an item."""
PREPARED = 16
"""Rows that are prepared at a time."""
LINE = 64
"""Bytes of a cache line."""

# Arguments of the call: x [T, in], or [T, 2 in] if it is to be gated; weights [L, P, in / I, 16 I] of I inputs a step;
# int32 [3]: rows in use, layer, whether results are bfloat16; weight of the norm float32 [in], or [0] for none; its
# epsilon float32 [1]; what is added, [T, out], of the type of results, or [0, 0].
# Results: y [T, out], and the rows as prepared [T, in], or [0, 0] if x is taken as it is. Rows are float32, or bfloat16
# if the form is native. Only then may results be bfloat16.
_X, _WEIGHT, _INTS, _NORM, _EPSILON, _PLUS = range(6)
# Words of the work descriptor.
_X_ROWS, _IN, _NORM_WEIGHT, _EPS, _PLUS_ROWS, _W, _Y, _T, _K, _P, _PREPARES, _CHUNKS, _NEXT, _DONE, _NARROW = range(
    FIRST, FIRST + 15
)
WORDS = 15


def scratch_bytes(form: Form) -> int:
    """Bytes in which a thread keeps sums, aligned by `aligned`."""
    return 4 * CHUNK * BLOCKS * BLOCK + LINE if form.is_native else 8


@compiled
def aligned(address: int) -> int:
    """The first cache line from an address on."""
    return (address + LINE - 1) // LINE * LINE


def _make_plan(form: Form) -> Any:
    input_bytes, inputs, scratch = BLOCK * form.weight_bytes, form.inputs_per_step, scratch_bytes(form)

    @compiled
    def plan(frame: int, work: int) -> int:
        ints = argument(frame, _INTS)
        rows, layer, is_narrow = int32(ints, 0), int32(ints, 1), int32(ints, 2)
        blocks, depth = size(frame, _WEIGHT, 1), size(frame, _WEIGHT, 2) * inputs
        y, width = result(frame, 0), blocks * BLOCK * (2 if is_narrow else 4)
        zero_bytes(y + rows * width, (size(frame, _X, 0) - rows) * width)
        is_normed = size(frame, _NORM, 0) > 0
        is_prepared = is_normed or size(frame, _X, 1) != depth
        prepares = (rows + PREPARED - 1) // PREPARED if is_prepared else 0
        chunks = (rows + CHUNK - 1) // CHUNK
        set_word(work, _X_ROWS, argument(frame, _X))
        set_word(work, _IN, result(frame, 1) if is_prepared else argument(frame, _X))
        set_word(work, _NORM_WEIGHT, argument(frame, _NORM) if is_normed else 0)
        set_word(work, _EPS, argument(frame, _EPSILON))
        set_word(work, _PLUS_ROWS, argument(frame, _PLUS) if size(frame, _PLUS, 0) > 0 else 0)
        set_word(work, _W, argument(frame, _WEIGHT) + layer * blocks * depth * input_bytes)
        set_word(work, _Y, y)
        set_word(work, _T, rows)
        set_word(work, _K, depth)
        set_word(work, _P, blocks)
        set_word(work, _PREPARES, prepares)
        set_word(work, _CHUNKS, chunks)
        # Threads take items in turn: how far it is to the strip that this one will have next.
        strips = (word(work, THREADS) + chunks - 1) // max(chunks, 1)
        set_word(work, _NEXT, strips * BLOCKS * depth * input_bytes)
        set_word(work, _DONE, 0)
        set_word(work, _NARROW, is_narrow)
        set_scratch(work, scratch)
        return prepares + (blocks + BLOCKS - 1) // BLOCKS * chunks

    return plan


def _make_prepare(form: Form) -> Any:
    normalise_row, gate_row = (normalise_narrow, gate_narrow) if form.is_native else (normalise, gate)
    each = form.row_bytes

    @compiled
    def prepare(work: int, first: int, last: int) -> None:
        """Normalise, or gate, rows from `first` up to `last`."""
        depth, source, to = word(work, _K), word(work, _X_ROWS), word(work, _IN)
        norm = word(work, _NORM_WEIGHT)
        for row in range(first, last):
            if norm:
                place = each * row * depth
                normalise_row(to + place, source + place, depth, norm, word(work, _EPS))
            else:
                gate_row(to + each * row * depth, source + 2 * each * row * depth, depth)

    return prepare


def _make_blocks(form: Form, blocks: int) -> Any:
    """Some rows times a few blocks from number `block` on."""
    strip, input_bytes, row_bytes = make_strip(form, blocks), BLOCK * form.weight_bytes, form.row_bytes

    @compiled
    def multiply(work: int, block: int, first: int, last: int, sums: int) -> None:
        depth, columns, plus = word(work, _K), word(work, _P) * BLOCK, word(work, _PLUS_ROWS)
        is_narrow = word(work, _NARROW)
        stride, place = depth * input_bytes, (2 if is_narrow else 4) * (first * columns + block * BLOCK)
        is_last = block * stride + word(work, _NEXT) >= word(work, _P) * stride
        # The next strip follows, or nothing but these blocks again.
        after = (0 if is_last else word(work, _NEXT)) - (depth - 1) // DEPTH * DEPTH * input_bytes
        x, weights = word(work, _IN) + row_bytes * first * depth, word(work, _W) + block * stride
        y, count = word(work, _Y) + place, last - first
        strip(x, weights, y, plus + place if plus else 0, depth, columns, count, after, sums, is_narrow)

    return multiply


def make_kernel(form: Form) -> Kernel:
    """The kernel of a form."""
    wide, prepare = _make_blocks(form, BLOCKS), _make_prepare(form)
    narrow = wide if BLOCKS == 1 else _make_blocks(form, 1)

    @compiled
    def item(work: int, index: int, scratch: int) -> None:
        rows, prepares, chunks = word(work, _T), word(work, _PREPARES), word(work, _CHUNKS)
        if index < prepares:
            prepare(work, index * PREPARED, min(index * PREPARED + PREPARED, rows))
            fetch_add(work, _DONE, 1)
            return
        # These items come first, so whoever has taken one is at work on it.
        while fetch(work, _DONE) < prepares:
            pass
        block = (index - prepares) // chunks * BLOCKS
        first = (index - prepares) % chunks * CHUNK
        last = min(first + CHUNK, rows)
        if block + BLOCKS <= word(work, _P):
            wide(work, block, first, last, aligned(scratch))
        else:
            for each in range(block, word(work, _P)):
                narrow(work, each, first, last, aligned(scratch))

    @compiled
    def finish(work: int) -> None:
        pass

    return Kernel(WORDS, _make_plan(form), item, finish)
