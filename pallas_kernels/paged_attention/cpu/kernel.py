"""The kernel: queries of one row and one KV head against the pages of the row.

One algorithm for decodes and prefill chunks: an online softmax ("FlashAttention", arXiv 2205.14135) over blocks of
keys, counted from the request's first. A score is one chain of products, a weighted sum too, and what a query may not
see adds exact zeros: results do not depend on what else is in the batch, nor on how a prompt was cut.

In a page the keys of a head are stored transposed [H, C] and the values as they are [C, H] (`layout.transposed_shape`),
so both products are sums of outer products, which need nothing across lanes.
"""

from typing import Any

import numpy as np

from jaxllm.pallas_kernels.cpu.calls import Kernel, free, result, size
from jaxllm.pallas_kernels.cpu.memory import (
    compiled,
    fetch,
    fetch_add,
    int32,
    real,
    set_real,
    set_word,
    word,
    zero_bytes,
)
from jaxllm.pallas_kernels.cpu.vectors import LANES, load, multiply, splat, store, sum_lanes
from jaxllm.pallas_kernels.paged_attention.cpu.job import (
    BLOCK,
    EACH_HEAD,
    J_CHUNK,
    J_CHUNKS,
    J_FLOATS,
    J_H,
    J_HAS_SINKS,
    J_K,
    J_N,
    J_OUT,
    J_POSITIONS,
    J_Q,
    J_Q_STRIDE,
    J_RESULTS,
    J_RUN,
    J_TOKENS,
    J_WRITES,
    J_WRITTEN,
    PANELS,
    SCALE,
    TILE,
    V_SCALE,
    WORDS,
    Q,
    first_seen,
    first_token,
    plan_chunks,
    read_call,
    scratch_parts,
)
from jaxllm.pallas_kernels.paged_attention.cpu.products import by_rows, find_block, find_values, make_score, make_weigh
from jaxllm.pallas_kernels.paged_attention.cpu.rotate import rotate
from jaxllm.pallas_kernels.paged_attention.cpu.softmax import LOG2_E, MASKED, ONE, adjust, soften
from jaxllm.pallas_kernels.paged_attention.cpu.write import make_write

SMALLEST = np.float32(1e-30)


@compiled
def _load_queries(job: int, first: int, tokens: int, head: int, to: int) -> None:
    """Queries of `tokens` tokens and a KV head's query heads, rotated and scaled: rows [tokens * G, H], then zeros."""
    head_size, group = word(job, J_H), word(job, J_N) // word(job, J_K)
    scale = real(word(job, J_FLOATS), SCALE) * LOG2_E
    for token in range(tokens):
        source = word(job, J_Q) + 4 * ((first + token) * word(job, J_Q_STRIDE) + head * group * head_size)
        for member in range(group):
            row = token * group + member
            rotate(job, first + token, source + 4 * member * head_size, to + 4 * row * head_size, scale)
    zero_bytes(to + 4 * tokens * group * head_size, 4 * (-tokens * group % TILE) * head_size)


@compiled
def _start_rows(job: int, head: int, rows: int, maxima: int, totals: int) -> None:
    """A softmax that has seen only the sinks, if there are any."""
    group = word(job, J_N) // word(job, J_K)
    zero_bytes(totals, 4 * rows * LANES)
    for row in range(rows):
        place = row // TILE * LANES + row % TILE
        if word(job, J_HAS_SINKS):
            set_real(maxima, place, real(word(job, J_FLOATS), EACH_HEAD + head * group + row % group) * LOG2_E)
            set_real(totals, row * LANES, ONE)
        else:
            set_real(maxima, place, MASKED)


@compiled
def _finish_rows(job: int, first: int, tokens: int, head: int, totals: int, sums: int) -> None:
    """Weighted sums over the sum of weights, to where the caller wants them."""
    heads, head_size = word(job, J_N), word(job, J_H)
    group = heads // word(job, J_K)
    for row in range(tokens * group):
        token, member = row // group, row % group
        factor = real(word(job, J_FLOATS), V_SCALE) / max(sum_lanes(load(totals, row * LANES)), SMALLEST)
        out = ((first + token) * heads + head * group + member) * head_size
        for place in range(0, head_size, LANES):
            store(word(job, J_OUT), out + place, multiply(load(sums, row * head_size + place), splat(factor)))


def _make_attend(kind: str) -> Any:
    wide, narrow = by_rows(PANELS, kind), by_rows(1, kind)
    score, weigh = make_score(wide, narrow), make_weigh(wide, narrow)

    @compiled
    def attend(job: int, row: int, head: int, first: int, tokens: int, scratch: int) -> None:
        """Results of `tokens` tokens of a row from `first` on, and the query heads of one KV head."""
        head_size, group = word(job, J_H), word(job, J_N) // word(job, J_K)
        q, sums, totals, maxima, decays, scores, keys, values, keys_next, values_next, runs, nexts = scratch_parts(
            job, scratch
        )
        rows = tokens * group
        _load_queries(job, first, tokens, head, q)
        _start_rows(job, head, rows, maxima, totals)
        zero_bytes(sums, 4 * rows * head_size)
        position = int32(word(job, J_POSITIONS), first)
        last = position + tokens
        start = first_seen(job, position) // BLOCK * BLOCK
        find_block(job, row, head, start, last, keys, values)
        for begin in range(start, last, BLOCK):
            stop = min(begin + BLOCK, last)
            find_block(job, row, head, begin + BLOCK, last, keys_next, values_next)
            find_values(job, stop - begin, values, keys_next, runs, nexts)
            count_runs = (stop - begin + word(job, J_RUN) - 1) // word(job, J_RUN)
            for tile in range(0, rows, TILE):
                count = min(TILE, rows - tile)
                # The tile's last query sees no further.
                length = min(stop, position + (tile + count - 1) // group + 1) - begin
                if length <= 0:
                    continue
                columns = (length + LANES - 1) // LANES * LANES
                score(job, count, columns, q + 4 * tile * head_size, scores, keys, values)
                for each in range(count):
                    at = position + (tile + each) // group
                    adjust(job, head, (tile + each) % group, scores + 4 * each * BLOCK, columns, at, begin)
                top, total, out = (
                    maxima + 4 * (tile // TILE) * LANES,
                    totals + 4 * tile * LANES,
                    sums + 4 * tile * head_size,
                )
                soften(count, scores, columns, top, total, out, head_size, decays)
                weigh(job, count, count_runs, length, scores, out, runs, nexts)
            keys, values, keys_next, values_next = keys_next, values_next, keys, values
        _finish_rows(job, first, tokens, head, totals, sums)

    return attend


def make_kernel(kind: str, bytes_each: int) -> Kernel:
    """The kernel for a cache of a type (NumPy's name) of 1, 2 or 4 bytes."""
    write, attend = make_write(kind, bytes_each), _make_attend(kind)

    @compiled
    def plan(frame: int, job: int) -> int:
        read_call(frame, job, bytes_each)
        tokens, token_bytes = word(job, J_TOKENS), 4 * word(job, J_N) * word(job, J_H)
        zero_bytes(result(frame, 0) + tokens * token_bytes, (size(frame, Q, 0) - tokens) * token_bytes)
        chunks = plan_chunks(job)
        items, writes = chunks * word(job, J_K), 0
        # The keys of a chunk are read by those behind it, so all must be there before any chunk is computed. Where
        # every row is a single chunk, nobody else reads them, and each item writes its own.
        for chunk in range(1, chunks):
            if int32(word(job, J_CHUNKS), 2 * chunk) == int32(word(job, J_CHUNKS), 2 * chunk - 2):
                writes = items
        set_word(job, J_RESULTS, items)
        set_word(job, J_WRITES, writes)
        set_word(job, J_WRITTEN, 0)
        return items + writes

    @compiled
    def item(job: int, index: int, scratch: int) -> None:
        """A chunk of a row, and one KV head: keys and values written, or results."""
        heads, writes = word(job, J_K), word(job, J_WRITES)
        # The last tokens of a prompt see most keys, and take longest: they come first, so that nobody waits long.
        chunk = index // heads if index < writes else (writes + word(job, J_RESULTS) - 1 - index) // heads
        head = index % heads
        row, first = int32(word(job, J_CHUNKS), 2 * chunk), int32(word(job, J_CHUNKS), 2 * chunk + 1)
        tokens = min(word(job, J_CHUNK), first_token(job, row + 1) - first)
        if index < writes or writes == 0:
            write(job, row, first, first + tokens, head, scratch)
            fetch_add(job, J_WRITTEN, 1)
        if index < writes:
            return
        # These items come first, so whoever has taken one is at work on it.
        while fetch(job, J_WRITTEN) < writes:
            pass
        attend(job, row, head, first, tokens, scratch)

    @compiled
    def finish(job: int) -> None:
        free(word(job, J_CHUNKS))

    return Kernel(WORDS, plan, item, finish)
