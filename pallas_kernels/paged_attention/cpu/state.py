"""A softmax on its way through the keys: rows of queries, and what they have seen so far, tile by tile.

A tile holds maxima [LANES], a lane for each of its rows, totals [TILE, LANES], which are as many sums for a row as
there are lanes, queries [TILE, H], and weighted sums of values [TILE, H], all float32. Queries may be bfloat16, in the
first half of their rows.
"""

from typing import Any

from jaxllm.pallas_kernels.cpu_common.attention_softmax import LOG2_E, MASKED, ONE, SMALLEST
from jaxllm.pallas_kernels.cpu_common.attention_words import (
    EACH_HEAD,
    SCALE,
    V_SCALE,
    W_FLOATS,
    W_H,
    W_HAS_SINKS,
    W_K,
    W_N,
    W_OUT,
    W_Q,
    W_Q_STRIDE,
)
from jaxllm.pallas_kernels.cpu_common.bfloat16 import load_narrow, store_narrow
from jaxllm.pallas_kernels.cpu_common.memory import compiled, real, set_real, word, zero_bytes
from jaxllm.pallas_kernels.cpu_common.vectors import LANES, load, multiply, splat, store, sum_lanes
from jaxllm.pallas_kernels.paged_attention.cpu.rotate import make_rotate
from jaxllm.pallas_kernels.paged_attention.cpu.work import TILE, tile_bytes


@compiled
def tile_parts(work: int, state: int, tile: int) -> tuple[int, int, int, int]:
    """Addresses of a tile's maxima, totals, queries and sums."""
    maxima = state + tile * tile_bytes(word(work, W_H))
    totals = maxima + 4 * LANES
    queries = totals + 4 * TILE * LANES
    return maxima, totals, queries, queries + 4 * TILE * word(work, W_H)


@compiled
def copy_rows(work: int, first: int, count: int, state: int, to: int) -> None:
    """Rows from `first` on, to the first ones of another state."""
    head_size = word(work, W_H)
    for row in range(count):
        maxima, totals, queries, sums = tile_parts(work, state, (first + row) // TILE)
        to_maxima, to_totals, to_queries, to_sums = tile_parts(work, to, row // TILE)
        source, place = (first + row) % TILE, row % TILE
        set_real(to_maxima, place, real(maxima, source))
        store(to_totals, place * LANES, load(totals, source * LANES))
        for number in range(0, head_size, LANES):
            store(to_queries, place * head_size + number, load(queries, source * head_size + number))
            store(to_sums, place * head_size + number, load(sums, source * head_size + number))


def make_start_rows(*, is_narrow: bool, paired: bool) -> Any:
    """`start_rows`, from float32 queries, or if `is_narrow` from bfloat16, which they become again if `paired`."""
    rotate = make_rotate(load_narrow if is_narrow else load, store_narrow if paired else store)
    bytes_each = 2 if is_narrow else 4

    @compiled
    def start_rows(work: int, first: int, tokens: int, head: int, state: int) -> None:
        """Rows [tokens * G]: queries of a KV head, rotated and scaled, that have seen only the sinks, if there are."""
        head_size, group = word(work, W_H), word(work, W_N) // word(work, W_K)
        scale = real(word(work, W_FLOATS), SCALE) * LOG2_E
        zero_bytes(state, (tokens * group + TILE - 1) // TILE * tile_bytes(head_size))
        for row in range(tokens * group):
            token, member = first + row // group, row % group
            maxima, totals, queries, _ = tile_parts(work, state, row // TILE)
            source = word(work, W_Q) + bytes_each * (
                token * word(work, W_Q_STRIDE) + (head * group + member) * head_size
            )
            rotate(work, token, source, queries + 4 * (row % TILE) * head_size, scale)
            if word(work, W_HAS_SINKS):
                set_real(maxima, row % TILE, real(word(work, W_FLOATS), EACH_HEAD + head * group + member) * LOG2_E)
                set_real(totals, row % TILE * LANES, ONE)
            else:
                set_real(maxima, row % TILE, MASKED)

    return start_rows


def make_finish_rows(*, is_narrow: bool) -> Any:
    """`finish_rows`, to float32 results, or if `is_narrow` to bfloat16."""
    store_result = store_narrow if is_narrow else store

    @compiled
    def finish_rows(work: int, first: int, tokens: int, head: int, state: int) -> None:
        """Weighted sums over the sum of weights, to where the caller wants them."""
        heads, head_size = word(work, W_N), word(work, W_H)
        group = heads // word(work, W_K)
        for row in range(tokens * group):
            token, member = first + row // group, row % group
            _, totals, _, sums = tile_parts(work, state, row // TILE)
            factor = real(word(work, W_FLOATS), V_SCALE) / max(sum_lanes(load(totals, row % TILE * LANES)), SMALLEST)
            out = (token * heads + head * group + member) * head_size
            for place in range(0, head_size, LANES):
                store_result(
                    word(work, W_OUT), out + place, multiply(load(sums, row % TILE * head_size + place), splat(factor))
                )

    return finish_rows
