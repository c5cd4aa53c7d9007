"""Chunks: what makes an item for each KV head.

A chunk is a part of a row, or several rows of one token each that begin with the same pages: these go through the keys
they share together, and every one through its own after that. Its numbers are the row, the first token, how many
tokens, and how many keys are shared, 0 if it is part of a row.
"""

from jaxllm.pallas_kernels.cpu_common.attention_words import (
    BLOCK,
    CHUNK_INTS,
    W_C,
    W_CHUNK,
    W_CHUNKS,
    W_NO,
    W_POSITIONS,
    W_REQUESTS,
    W_TABLE,
    W_WIDTH,
    W_WINDOW,
    first_token,
)
from jaxllm.pallas_kernels.cpu_common.memory import compiled, int32, set_int32, word

PREFIX_ROWS = 16
"""Rows that go through shared keys together: as many as make these cheap, few enough to leave work for all threads."""


@compiled
def chunk_parts(work: int, chunk: int) -> tuple[int, int, int, int]:
    """Row, first token, tokens, shared keys."""
    place = chunk * CHUNK_INTS
    chunks = word(work, W_CHUNKS)
    return int32(chunks, place), int32(chunks, place + 1), int32(chunks, place + 2), int32(chunks, place + 3)


@compiled
def plan_chunks(work: int) -> int:
    """Write down the chunks of all rows; their number."""
    chunks = row = word(work, W_NO)
    while row < word(work, W_REQUESTS):
        rows, shared = _rows_with_shared_prefix(work, row)
        end = first_token(work, row + rows)
        most = rows if shared else word(work, W_CHUNK)
        for first in range(first_token(work, row), end, most):
            place = chunks * CHUNK_INTS
            set_int32(word(work, W_CHUNKS), place, row)
            set_int32(word(work, W_CHUNKS), place + 1, first)
            set_int32(word(work, W_CHUNKS), place + 2, min(most, end - first))
            set_int32(word(work, W_CHUNKS), place + 3, shared)
            chunks += 1
        row += rows
    return chunks


@compiled
def _rows_with_shared_prefix(work: int, row: int) -> tuple[int, int]:
    """How many rows from one on make a chunk of several, and the keys they share; 1 and 0 if that one is alone."""
    rows, shared = 1, _keys_behind(work, row)
    while rows < min(PREFIX_ROWS, word(work, W_CHUNK)) and row + rows < word(work, W_REQUESTS) and shared:
        common = _shared_keys(work, row, row + rows, shared)
        # Whoever shares less would have the others go through more keys alone.
        if common == 0 or (rows > 1 and common < shared):
            break
        rows, shared = rows + 1, common
    return rows, shared if rows > 1 else 0


@compiled
def _keys_behind(work: int, row: int) -> int:
    """Keys in whole blocks before a row's token, if it sees them all; 0 unless the row has just one token."""
    first = first_token(work, row)
    if word(work, W_WINDOW) > 0 or first_token(work, row + 1) - first != 1:
        return 0
    return int32(word(work, W_POSITIONS), first) // BLOCK * BLOCK


@compiled
def _shared_keys(work: int, row: int, other: int, most: int) -> int:
    """Keys of whole blocks, up to `most`, that lie in the same pages for two rows."""
    most = min(most, _keys_behind(work, other))
    table, width, page_size = word(work, W_TABLE), word(work, W_WIDTH), word(work, W_C)
    page = 0
    while page * page_size < most and int32(table, row * width + page) == int32(table, other * width + page):
        page += 1
    return min(page * page_size, most) // BLOCK * BLOCK
