"""The blocks of keys that an index chooses for a KV head of a token: scored, compared, put in order."""

from typing import Any

import numpy as np

from jaxllm.pallas_kernels.cpu_common.attention_softmax import scale_columns
from jaxllm.pallas_kernels.cpu_common.attention_words import (
    BLOCK,
    LINE,
    W_C,
    W_H,
    W_HEADS,
    W_INDEX,
    W_INDEX_BLOCK,
    W_INDEX_GROUPS,
    W_INDEX_LOCAL,
    W_INDEX_TOP,
    W_K,
    W_POSITIONS,
    W_RUN,
    W_TOKENS,
    W_WIDTH,
)
from jaxllm.pallas_kernels.cpu_common.calls import THREADS, argument, set_scratch
from jaxllm.pallas_kernels.cpu_common.memory import compiled, int32, real, set_int32, set_real, set_word, word
from jaxllm.pallas_kernels.cpu_common.vectors import LANES, keep, load, max_lanes
from jaxllm.pallas_kernels.paged_attention.cpu.products import fetch_block, make_find_block
from jaxllm.pallas_kernels.paged_attention.cpu.work import CHOICE, INDEX, TILE, block_parts, run_of, scratch_bytes

_NONE = np.float32(-np.inf)
"""Score of a block that is chosen already."""
_LOWEST, _HIGHEST = np.float32(-3e38), np.float32(np.inf)
"""Scores of keys that are not seen, and of blocks that always are."""


@compiled
def read_index(frame: int, work: int) -> None:
    """Write down what `choose` needs, after `read_call`, and have memory for it."""
    choice = argument(frame, CHOICE)
    set_word(work, W_INDEX, argument(frame, INDEX))
    set_word(work, W_INDEX_BLOCK, int32(choice, 0))
    set_word(work, W_INDEX_TOP, int32(choice, 1))
    set_word(work, W_INDEX_LOCAL, int32(choice, 2))
    # All heads of a token read its index keys once, unless some threads had nothing to do then.
    is_apart = word(work, THREADS) > 1 and word(work, W_TOKENS) < 2 * word(work, THREADS)
    set_word(work, W_INDEX_GROUPS, word(work, W_K) if is_apart else 1)
    size, page_size = int32(choice, 0), word(work, W_C)
    while page_size:
        size, page_size = page_size, size % page_size
    set_word(work, W_RUN, run_of(size))
    own = LINE + 4 * TILE * _blocks(work) + 4 * word(work, W_K) * word(work, W_INDEX_TOP)
    set_scratch(work, scratch_bytes(work) + own)


@compiled
def chosen_parts(work: int, memory: int) -> tuple[int, int]:
    """Addresses of scores [TILE, blocks], and of chosen blocks, int32 [K, top]."""
    scores = (memory + LINE - 1) // LINE * LINE
    return scores, scores + 4 * TILE * _blocks(work)


@compiled
def _blocks(work: int) -> int:
    size = word(work, W_INDEX_BLOCK)
    return (word(work, W_WIDTH) * word(work, W_C) + size - 1) // size


@compiled
def _best(scores: int, blocks: int) -> int:
    """The first of the blocks with the best score. What is no number is worse than all."""
    place, best = -1, _NONE
    for block in range(blocks):
        score = real(scores, block)
        if score > best:
            place, best = block, score
    if place < 0:
        place = 0
        while place < blocks - 1 and real(scores, place) == _NONE:
            place += 1
    return place


@compiled
def _take_best(work: int, scores: int, own: int, chosen: int) -> None:
    """Write the best blocks up to `own`, ascending; the last ones are always among them."""
    for block in range(max(own + 1 - word(work, W_INDEX_LOCAL), 0), own + 1):
        set_real(scores, block, _HIGHEST)
    for count in range(word(work, W_INDEX_TOP)):
        block, place = _best(scores, own + 1), count
        set_real(scores, block, _NONE)
        while place > 0 and int32(chosen, place - 1) > block:
            set_int32(chosen, place, int32(chosen, place - 1))
            place -= 1
        set_int32(chosen, place, block)


def _make_score_blocks(score: Any, *, scaled: bool) -> Any:
    find_block = make_find_block(is_chosen=False)

    @compiled
    def score_blocks(
        work: int, row: int, token: int, head: int, count: int, memory: int, best: int, blocks: int
    ) -> None:
        """The largest product of each block with the queries of `count` heads, to `best` [count, blocks]."""
        _, scores, keys, values, keys_next, values_next, _, _ = block_parts(work, memory)
        size, index, end = word(work, W_INDEX_BLOCK), word(work, W_HEADS) - 1, int32(word(work, W_POSITIONS), token) + 1
        queries = word(work, W_INDEX) + 4 * (token * word(work, W_K) + head) * word(work, W_H)
        for place in range(count * blocks):
            set_real(best, place, _LOWEST)
        find_block(work, row, index, 0, end, keys, values, 0)
        fetch_block(work, keys, keys)
        for start in range(0, end, BLOCK):
            find_block(work, row, index, start + BLOCK, end, keys_next, values_next, 0)
            columns = (min(end - start, BLOCK) + LANES - 1) // LANES * LANES
            score(work, count, columns, queries, scores, keys, keys_next)
            if scaled:
                scale_columns(count, scores, columns, keys)
            for each in range(count):
                for column in range(0, columns, LANES):
                    found = keep(load(scores, each * BLOCK + column), 0, end - start - column, _LOWEST)
                    place = each * blocks + (start + column) // size
                    set_real(best, place, max(real(best, place), max_lanes(found)))
            keys, keys_next = keys_next, keys

    return score_blocks


def make_choose(score: Any, *, scaled: bool) -> Any:
    """The function that chooses; `score` is that of attention."""
    score_blocks = _make_score_blocks(score, scaled=scaled)

    @compiled
    def choose(work: int, row: int, token: int, first: int, count: int, memory: int, best: int, chosen: int) -> int:
        """Write the blocks that each of `count` KV heads from `first` on sees, int32 [count, top]; their number."""
        own, top = int32(word(work, W_POSITIONS), token) // word(work, W_INDEX_BLOCK), word(work, W_INDEX_TOP)
        blocks = own + 1
        if blocks <= top:
            for each in range(count):
                for block in range(blocks):
                    set_int32(chosen, each * top + block, block)
            return blocks
        for head in range(0, count, TILE):
            rows = min(count - head, TILE)
            score_blocks(work, row, token, first + head, rows, memory, best, blocks)
            for each in range(rows):
                _take_best(work, best + 4 * each * blocks, own, chosen + 4 * (head + each) * top)
        return top

    return choose
