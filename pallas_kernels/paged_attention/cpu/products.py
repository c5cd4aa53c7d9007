"""The two products of a block: queries by keys, and weights by values."""

from typing import Any

from jaxllm.pallas_kernels.cpu_common.attention_words import (
    BLOCK,
    GROUP,
    LINE,
    VECTORS,
    W_BLOCK,
    W_BYTES,
    W_C,
    W_COLUMN,
    W_H,
    W_INDEX_BLOCK,
    W_NO,
    W_RUN,
    W_YES,
)
from jaxllm.pallas_kernels.cpu_common.memory import compiled, fetch_line, int32, set_word, word
from jaxllm.pallas_kernels.cpu_common.outer_tile import make_outer_tile
from jaxllm.pallas_kernels.cpu_common.vectors import LANES
from jaxllm.pallas_kernels.paged_attention.cpu.work import TILE, key_and_value_at


def make_row_tiles(vectors: int, kind: str) -> Any:
    """`make_outer_tile` for up to `TILE` rows; for four or more it takes all `TILE`."""
    one, two, three, most = (make_outer_tile(rows, vectors, kind) for rows in (1, 2, 3, TILE))

    @compiled
    def product(
        rows: int,
        a: int,
        a_stride: int,
        bs: int,
        b_stride: int,
        run: int,
        length: int,
        c: int,
        c_stride: int,
        more: int,
        nexts: int,
        step: int,
    ) -> None:
        if rows > 3:
            most(a, a_stride, bs, b_stride, run, length, c, c_stride, more, nexts, step)
        elif rows == 3:
            three(a, a_stride, bs, b_stride, run, length, c, c_stride, more, nexts, step)
        elif rows == 2:
            two(a, a_stride, bs, b_stride, run, length, c, c_stride, more, nexts, step)
        else:
            one(a, a_stride, bs, b_stride, run, length, c, c_stride, more, nexts, step)

    return product


def make_find_block(*, is_chosen: bool) -> Any:
    """`find_block`, of the keys of a row, or of blocks of them that are chosen."""

    @compiled
    def find_block(work: int, row: int, head: int, begin: int, last: int, keys: int, values: int, chosen: int) -> None:
        """Addresses of the keys of a block from `begin` on, a vector of them each, and those of their values.

        After the addresses of a block's keys lie those of their scales, and so for values.
        For a row that ends at `last`; after it any key will do, since it is masked.
        Places are counted in the blocks at `chosen`, int32, where they are chosen.
        """
        behind = (last - 1) // LANES * LANES
        for vector in range(BLOCK // LANES):
            position = min(begin + vector * LANES, behind)
            if is_chosen:
                size = word(work, W_INDEX_BLOCK)
                position = int32(chosen, position // size) * size + position % size
            key, value, key_scale, value_scale = key_and_value_at(work, row, position, head)
            set_word(keys, vector, key)
            set_word(values, vector, value)
            set_word(keys, BLOCK // LANES + vector, key_scale)
            set_word(values, BLOCK // LANES + vector, value_scale)

    return find_block


@compiled
def find_values(work: int, count: int, values: int, values_next: int, runs: int, nexts: int) -> None:
    """Write to `runs` the addresses of `count` values: vectors, run by run, for each part of the head.

    `values` are those of `find_block`. To `nexts` go the same of the next block, `values_next`.
    """
    head_size, run, line = word(work, W_H), word(work, W_RUN), LANES * word(work, W_COLUMN)
    index = place = 0
    while place < head_size:
        vectors = VECTORS if place + GROUP <= head_size else 1
        for first in range(0, count, run):
            value = word(values, first // LANES) + place * word(work, W_COLUMN)
            ahead = word(values_next, first // LANES) + place * word(work, W_COLUMN)
            for vector in range(vectors):
                set_word(runs, index, value + vector * line)
                set_word(nexts, index, ahead + vector * line)
                index += 1
        place += vectors * LANES


@compiled
def fetch_block(work: int, keys: int, values: int) -> None:
    """Have the keys and values fetched that `find_block` has found, before anything is computed."""
    page_size, head_size, bytes_each = word(work, W_C), word(work, W_H), word(work, W_BYTES)
    step, vector_bytes = page_size * word(work, W_COLUMN), LANES * head_size * bytes_each
    rows = head_size * bytes_each // word(work, W_COLUMN)
    for vector in range(BLOCK // LANES):
        for row in range(rows):
            fetch_line(word(keys, vector) + row * step)
    for vector in range(BLOCK // LANES):
        for place in range(0, vector_bytes, LINE):
            fetch_line(word(values, vector) + place)


def make_score(wide: Any, narrow: Any, together: int) -> Any:
    """Scores of a few rows; `wide` is `make_row_tiles(VECTORS, kind)`, `narrow` `make_row_tiles(1, kind)`.

    `together` numbers are multiplied at once.
    """

    @compiled
    def score(work: int, rows: int, columns: int, q: int, scores: int, keys: int, nexts: int) -> None:
        """Scores [rows, BLOCK] of the keys that `find_block` has found, `columns` of them, whole vectors.

        Those of the next block, `nexts`, are fetched meanwhile.
        """
        page_size, head_size, step = word(work, W_C), word(work, W_H), word(work, W_C) * word(work, W_COLUMN)
        stride, fresh, depth = word(work, W_BLOCK), word(work, W_NO), head_size // together
        column = 0
        while column < columns:
            table, ahead, out = keys + 8 * (column // LANES), nexts + 8 * (column // LANES), scores + 4 * column
            if columns - column > GROUP // 2:
                wide(rows, q, head_size, table, page_size, depth, depth, out, stride, fresh, ahead, step)
                column += GROUP
            else:
                narrow(rows, q, head_size, table, page_size, depth, depth, out, stride, fresh, ahead, step)
                column += LANES

    return score


def make_weigh(wide: Any, narrow: Any, together: int) -> Any:
    """Weighted sums of a few rows; the arguments are as in `make_score`.

    The last pair may have one value too many, whose weight is 0.
    """

    @compiled
    def weigh(work: int, rows: int, runs: int, length: int, weights: int, sums: int, values: int, nexts: int) -> None:
        """Add `length` values, weighted, to the sums [rows, H]; `find_values` has found `runs` runs of them."""
        head_size, run, step = word(work, W_H), word(work, W_RUN) // together, word(work, W_H) * word(work, W_COLUMN)
        stride, more, length = word(work, W_BLOCK), word(work, W_YES), (length + together - 1) // together
        index = place = 0
        while place < head_size:
            table, ahead, out = values + 8 * index, nexts + 8 * index, sums + 4 * place
            if place + GROUP <= head_size:
                wide(rows, weights, stride, table, head_size, run, length, out, head_size, more, ahead, step)
                index += runs * VECTORS
                place += GROUP
            else:
                narrow(rows, weights, stride, table, head_size, run, length, out, head_size, more, ahead, step)
                index += runs
                place += LANES

    return weigh
