"""A softmax on its way through the keys: rows of queries, and what they have seen so far, tile by tile.

A tile holds maxima [LANES], a lane for each of its rows, totals [TILE, LANES], scores of a block [TILE, BLOCK], queries
[TILE, S] and weighted sums of latents [TILE, Z], all float32. Queries and weights may be bfloat16, in the first half
of their rows.
"""

from typing import Any

from jaxllm.pallas_kernels.cpu_common.attention_softmax import LOG2_E, MASKED, ONE, SMALLEST
from jaxllm.pallas_kernels.cpu_common.attention_words import (
    BLOCK,
    EACH_HEAD,
    SCALE,
    W_FLOATS,
    W_H,
    W_HAS_SINKS,
    W_K,
    W_N,
    W_OUT,
    W_Q,
)
from jaxllm.pallas_kernels.cpu_common.bfloat16 import load_narrow, store_narrow
from jaxllm.pallas_kernels.cpu_common.memory import compiled, real, set_real, word, zero_bytes
from jaxllm.pallas_kernels.cpu_common.vectors import LANES, load, multiply, splat, store, sum_lanes
from jaxllm.pallas_kernels.latent_attention.cpu.work import (
    TILE,
    W_Q_ROPE,
    W_Y,
    W_Z,
    tile_bytes,
)


@compiled
def tile_parts(work: int, state: int, tile: int) -> tuple[int, int, int, int, int]:
    """Addresses of a tile's maxima, totals, scores, queries and sums."""
    maxima = state + tile * tile_bytes(work)
    totals = maxima + 4 * LANES
    scores = totals + 4 * TILE * LANES
    queries = scores + 4 * TILE * BLOCK
    return maxima, totals, scores, queries, queries + 4 * TILE * word(work, W_H)


def make_start_rows(*, is_narrow: bool) -> Any:
    """`start_rows`, from float32 queries, or from bfloat16, which they become again."""
    read, write = (load_narrow, store_narrow) if is_narrow else (load, store)

    @compiled
    def start_rows(work: int, first: int, tokens: int, group: int, state: int) -> None:
        """Rows [tokens * G]: queries of a group of heads, scaled, that have seen only the sinks, if there are."""
        members = word(work, W_N) // word(work, W_K)
        token_size, latent, rope = word(work, W_H), word(work, W_Z), word(work, W_Y)
        scale = splat(real(word(work, W_FLOATS), SCALE) * LOG2_E)
        zero_bytes(state, (tokens * members + TILE - 1) // TILE * tile_bytes(work))
        for row in range(tokens * members):
            head = (first + row // members) * word(work, W_N) + group * members + row % members
            maxima, totals, _, queries, _ = tile_parts(work, state, row // TILE)
            to = queries + 4 * (row % TILE) * token_size
            for place in range(0, latent, LANES):
                write(to, place, multiply(read(word(work, W_Q), head * latent + place), scale))
            for place in range(0, rope, LANES):
                write(to, latent + place, multiply(read(word(work, W_Q_ROPE), head * rope + place), scale))
            if word(work, W_HAS_SINKS):
                sink = EACH_HEAD + group * members + row % members
                set_real(maxima, row % TILE, real(word(work, W_FLOATS), sink) * LOG2_E)
                set_real(totals, row % TILE * LANES, ONE)
            else:
                set_real(maxima, row % TILE, MASKED)

    return start_rows


@compiled
def copy_rows(work: int, first: int, count: int, state: int, to: int) -> None:
    """Rows from `first` on, to the first ones of another state."""
    token_size, latent = word(work, W_H), word(work, W_Z)
    for row in range(count):
        maxima, totals, _, queries, sums = tile_parts(work, state, (first + row) // TILE)
        to_maxima, to_totals, _, to_queries, to_sums = tile_parts(work, to, row // TILE)
        source, place = (first + row) % TILE, row % TILE
        set_real(to_maxima, place, real(maxima, source))
        store(to_totals, place * LANES, load(totals, source * LANES))
        for number in range(0, token_size, LANES):
            store(to_queries, place * token_size + number, load(queries, source * token_size + number))
        for number in range(0, latent, LANES):
            store(to_sums, place * latent + number, load(sums, source * latent + number))


def make_finish_rows(*, is_narrow: bool) -> Any:
    """`finish_rows`, to float32 results, or to bfloat16."""
    write = store_narrow if is_narrow else store

    @compiled
    def finish_rows(work: int, first: int, tokens: int, group: int, state: int) -> None:
        """Weighted sums over the sum of weights, to where the caller wants them."""
        members, latent = word(work, W_N) // word(work, W_K), word(work, W_Z)
        for row in range(tokens * members):
            head = (first + row // members) * word(work, W_N) + group * members + row % members
            _, totals, _, _, sums = tile_parts(work, state, row // TILE)
            factor = splat(ONE / max(sum_lanes(load(totals, row % TILE * LANES)), SMALLEST))
            for place in range(0, latent, LANES):
                value = multiply(load(sums, row % TILE * latent + place), factor)
                write(word(work, W_OUT), head * latent + place, value)

    return finish_rows
