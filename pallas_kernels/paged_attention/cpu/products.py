"""The two products of a block: queries by keys, and weights by values."""

from typing import Any

from jaxllm.pallas_kernels.cpu.memory import compiled, set_word, word
from jaxllm.pallas_kernels.cpu.tiles import make_outer_tile
from jaxllm.pallas_kernels.cpu.vectors import LANES
from jaxllm.pallas_kernels.paged_attention.cpu.job import (
    BLOCK,
    GROUP,
    J_BLOCK,
    J_BYTES,
    J_C,
    J_H,
    J_NO,
    J_YES,
    PANELS,
    keys_at,
    values_at,
)

LINE = 64
"""Bytes of a cache line."""


def by_rows(panels: int, kind: str) -> Any:
    """`make_outer_tile` for any number of rows, with which the function begins; they are taken up to six at a time."""
    one, two, three, four, six = (make_outer_tile(rows, panels, kind) for rows in (1, 2, 3, 4, 6))

    @compiled
    def product(
        rows: int, a: int, a_step: int, bs: int, b_step: int, n: int, c: int, c_step: int, more: int, to: int
    ) -> None:
        row = 0
        while row < rows:
            left = rows - row
            x, y = a + 4 * row * a_step, c + 4 * row * c_step
            if left >= 6:
                six(x, a_step, bs, b_step, n, y, c_step, more, to)
                row += 6
            elif left >= 4:
                four(x, a_step, bs, b_step, n, y, c_step, more, to)
                row += 4
            elif left == 3:
                three(x, a_step, bs, b_step, n, y, c_step, more, to)
                row += 3
            elif left == 2:
                two(x, a_step, bs, b_step, n, y, c_step, more, to)
                row += 2
            else:
                one(x, a_step, bs, b_step, n, y, c_step, more, to)
                row += 1

    return product


def make_score(wide: Any) -> Any:
    """Scores of a block; `wide` is `by_rows(PANELS, kind)`."""

    @compiled
    def score(job: int, row: int, head: int, begin: int, end: int, rows: int, q: int, scores: int, bs: int) -> int:
        """Scores [rows, BLOCK] of the keys from `begin` up to `end`, filled up to whole tiles; the number of columns.

        Their values, which are needed next, are fetched meanwhile.
        """
        page_size, head_size = word(job, J_C), word(job, J_H)
        stride, fresh = word(job, J_BLOCK), word(job, J_NO)
        column = 0
        while begin + column < end:
            for panel in range(PANELS):
                # Behind the end any key does: it will be masked.
                position = min(begin + column + panel * LANES, (end - 1) // LANES * LANES)
                set_word(bs, panel, keys_at(job, row, position, head))
                set_word(bs, PANELS + panel, values_at(job, row, position, head))
            wide(rows, q, head_size, bs, page_size, head_size, scores + 4 * column, stride, fresh, LINE)
            column += GROUP
        return column

    return score


def make_weigh(wide: Any, narrow: Any) -> Any:
    """Weighted sums of a block; `wide` is `by_rows(PANELS, kind)`, `narrow` `by_rows(1, kind)`."""

    @compiled
    def weigh(
        job: int, row: int, head: int, begin: int, end: int, last: int, rows: int, weights: int, sums: int, bs: int
    ) -> None:
        """Add the values of the keys from `begin` up to `end`, weighted, to the sums [rows, H].

        Keys of the next block, of a row that ends at `last`, are fetched meanwhile.
        """
        page_size, head_size, bytes_each = word(job, J_C), word(job, J_H), word(job, J_BYTES)
        stride, more = word(job, J_BLOCK), word(job, J_YES)
        step = page_size * bytes_each
        position = begin
        while position < end:
            keys = min(page_size - position % page_size, end - position)
            values = values_at(job, row, position, head)
            ahead = keys_at(job, row, min(position + BLOCK, last - 1), head)
            these = weights + 4 * (position - begin)
            place = 0
            while place < head_size:
                panels = PANELS if place + GROUP <= head_size else 1
                for panel in range(panels):
                    set_word(bs, panel, values + (place + panel * LANES) * bytes_each)
                    set_word(bs, panels + panel, ahead + (place + panel) * step)
                if panels == PANELS:
                    wide(rows, these, stride, bs, head_size, keys, sums + 4 * place, head_size, more, panels * step)
                else:
                    narrow(rows, these, stride, bs, head_size, keys, sums + 4 * place, head_size, more, step)
                place += panels * LANES
            position += keys

    return weigh
