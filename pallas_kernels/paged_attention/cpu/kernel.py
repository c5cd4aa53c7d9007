"""The kernel: queries of one row and one KV head against the pages of the row.

One algorithm for decodes and prefill chunks: an online softmax ("FlashAttention", arXiv 2205.14135) over blocks of
keys, counted from the request's first. A score is one chain of products, a weighted sum too, and what a query may not
see adds exact zeros: results do not depend on what else is in the batch, nor on how a prompt was cut.

In a page the keys of a head are stored transposed [H, C] and the values as they are [C, H] (`layout.transposed_shape`),
so both products are sums of outer products, which need nothing across lanes.
"""

from typing import Any

import numpy as np
from llvmlite import ir

from jaxllm.pallas_kernels.cpu.calls import Kernel, free, result, size
from jaxllm.pallas_kernels.cpu.memory import compiled, int32, mover, real, set_real, word, zero_bytes
from jaxllm.pallas_kernels.cpu.vectors import FLOAT, LANES, load, multiply, splat, store
from jaxllm.pallas_kernels.paged_attention.cpu.job import (
    BLOCK,
    EACH_HEAD,
    J_BYTES,
    J_C,
    J_CHUNK,
    J_CHUNKS,
    J_FLOATS,
    J_H,
    J_HAS_SINKS,
    J_K,
    J_N,
    J_NEW_K,
    J_NEW_V,
    J_OUT,
    J_POSITIONS,
    J_Q,
    J_REQUESTS,
    J_TOKENS,
    PANELS,
    SCALE,
    V_SCALE,
    WORDS,
    Q,
    first_seen,
    first_token,
    keys_at,
    plan_chunks,
    read_call,
    values_at,
)
from jaxllm.pallas_kernels.paged_attention.cpu.products import by_rows, make_score, make_weigh
from jaxllm.pallas_kernels.paged_attention.cpu.softmax import MASKED, ONE, ZERO, adjust, soften

SMALLEST = np.float32(1e-30)


@compiled
def _load_queries(job: int, first: int, tokens: int, head: int, to: int) -> None:
    """Queries of `tokens` tokens and the query heads of a KV head, as rows [tokens * G, H], scaled."""
    heads, head_size = word(job, J_N), word(job, J_H)
    group = heads // word(job, J_K)
    scale = splat(real(word(job, J_FLOATS), SCALE))
    for token in range(tokens):
        source = ((first + token) * heads + head * group) * head_size
        for place in range(0, group * head_size, LANES):
            store(to, token * group * head_size + place, multiply(load(word(job, J_Q), source + place), scale))


@compiled
def _start_rows(job: int, head: int, rows: int, maxima: int, totals: int) -> None:
    """A softmax that has seen only the sinks, if there are any."""
    group = word(job, J_N) // word(job, J_K)
    for row in range(rows):
        if word(job, J_HAS_SINKS):
            set_real(maxima, row, real(word(job, J_FLOATS), EACH_HEAD + head * group + row % group))
            set_real(totals, row, ONE)
        else:
            set_real(maxima, row, MASKED)
            set_real(totals, row, ZERO)


@compiled
def _finish_rows(job: int, first: int, tokens: int, head: int, totals: int, sums: int) -> None:
    """Weighted sums over the sum of weights, to where the caller wants them."""
    heads, head_size = word(job, J_N), word(job, J_H)
    group = heads // word(job, J_K)
    for row in range(tokens * group):
        token, member = row // group, row % group
        factor = real(word(job, J_FLOATS), V_SCALE) / max(real(totals, row), SMALLEST)
        out = ((first + token) * heads + head * group + member) * head_size
        for place in range(0, head_size, LANES):
            store(word(job, J_OUT), out + place, multiply(load(sums, row * head_size + place), splat(factor)))


def _make_write(kind: str, bytes_each: int) -> Any:
    move = mover(FLOAT if kind == "float32" else ir.IntType(8 * bytes_each))

    @compiled
    def write(job: int, row: int, first: int, last: int, head: int) -> None:
        """Put keys and values of a row's tokens from `first` up to `last` into their pages.

        Of float32 what is finite (see `ragged.quantise`, which does it for the other types).
        """
        heads, head_size, page_size = word(job, J_K), word(job, J_H), word(job, J_C)
        for token in range(first, last):
            position = int32(word(job, J_POSITIONS), token)
            key = keys_at(job, row, position, head)
            source = (token * heads + head) * head_size * word(job, J_BYTES)
            for place in range(head_size):
                move(key, place * page_size, word(job, J_NEW_K) + source, place)
            value = values_at(job, row, position, head)
            for place in range(head_size):
                move(value, place, word(job, J_NEW_V) + source, place)

    return write


def _make_item(kind: str, write: Any) -> Any:
    wide, narrow = by_rows(PANELS, kind), by_rows(1, kind)
    score, weigh = make_score(wide), make_weigh(wide, narrow)

    @compiled
    def item(job: int, index: int, scratch: int) -> None:
        """A chunk of a row, and one KV head."""
        heads, head_size = word(job, J_K), word(job, J_H)
        group = word(job, J_N) // heads
        row, head = int32(word(job, J_CHUNKS), 2 * (index // heads)), index % heads
        first = int32(word(job, J_CHUNKS), 2 * (index // heads) + 1)
        end = first_token(job, row + 1)
        tokens = min(word(job, J_CHUNK), end - first)
        rows, most = tokens * group, word(job, J_CHUNK) * group
        if end - first_token(job, row) == 1:
            write(job, row, first, end, head)
        sums = scratch + 4 * most * head_size
        scores = sums + 4 * most * head_size
        maxima = scores + 4 * most * BLOCK
        totals, panels = maxima + 4 * most, maxima + 8 * most
        _load_queries(job, first, tokens, head, scratch)
        _start_rows(job, head, rows, maxima, totals)
        zero_bytes(sums, 4 * rows * head_size)
        position = int32(word(job, J_POSITIONS), first)
        last = position + tokens
        for begin in range(first_seen(job, position) // BLOCK * BLOCK, last, BLOCK):
            stop = min(begin + BLOCK, last)
            columns = score(job, row, head, begin, stop, rows, scratch, scores, panels)
            for each in range(rows):
                line = scores + 4 * each * BLOCK
                adjust(job, head, each % group, line, columns, position + each // group, begin)
                soften(line, columns, maxima, totals, each, sums + 4 * each * head_size, head_size)
            weigh(job, row, head, begin, stop, last, rows, scores, sums, panels)
        _finish_rows(job, first, tokens, head, totals, sums)

    return item


def make_kernel(kind: str, bytes_each: int) -> Kernel:
    """The kernel for a cache of a type (NumPy's name) of 1, 2 or 4 bytes."""
    write = _make_write(kind, bytes_each)

    @compiled
    def plan(frame: int, job: int) -> int:
        read_call(frame, job, bytes_each)
        for row in range(word(job, J_REQUESTS)):
            # The keys of a chunk are read by those behind it, so they must be there before any item begins. Rows of a
            # single token write their own.
            first, end = first_token(job, row), first_token(job, row + 1)
            if end - first > 1:
                for head in range(word(job, J_K)):
                    write(job, row, first, end, head)
        tokens, token_bytes = word(job, J_TOKENS), 4 * word(job, J_N) * word(job, J_H)
        zero_bytes(result(frame, 0) + tokens * token_bytes, (size(frame, Q, 0) - tokens) * token_bytes)
        return plan_chunks(job) * word(job, J_K)

    @compiled
    def finish(job: int) -> None:
        free(word(job, J_CHUNKS))

    return Kernel(WORDS, plan, _make_item(kind, write), finish)
