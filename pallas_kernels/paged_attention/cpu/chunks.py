"""Chunks: what makes an item for each KV head.

A chunk is a part of a row, or several rows of one token each that begin with the same pages: these go through the keys
they share together, and every one through its own after that. Its numbers are the row, the first token, how many
tokens, and how many keys are shared, 0 if it is part of a row.
"""

from jaxllm.pallas_kernels.numba.memory import compiled, int32, set_int32, word
from jaxllm.pallas_kernels.paged_attention.cpu.job import (
    BLOCK,
    CHUNK_INTS,
    J_C,
    J_CHUNK,
    J_CHUNKS,
    J_NO,
    J_POSITIONS,
    J_REQUESTS,
    J_TABLE,
    J_W,
    J_WINDOW,
    first_token,
)

ALIKE = 16
"""Rows that go through shared keys together: as many as make these cheap, few enough to leave work for all threads."""


@compiled
def chunk_parts(job: int, chunk: int) -> tuple[int, int, int, int]:
    """Row, first token, tokens, shared keys."""
    place = chunk * CHUNK_INTS
    chunks = word(job, J_CHUNKS)
    return int32(chunks, place), int32(chunks, place + 1), int32(chunks, place + 2), int32(chunks, place + 3)


@compiled
def plan_chunks(job: int) -> int:
    """Write down the chunks of all rows; their number."""
    chunks = row = word(job, J_NO)
    while row < word(job, J_REQUESTS):
        rows, shared = _alike(job, row)
        end = first_token(job, row + rows)
        most = rows if shared else word(job, J_CHUNK)
        for first in range(first_token(job, row), end, most):
            place = chunks * CHUNK_INTS
            set_int32(word(job, J_CHUNKS), place, row)
            set_int32(word(job, J_CHUNKS), place + 1, first)
            set_int32(word(job, J_CHUNKS), place + 2, min(most, end - first))
            set_int32(word(job, J_CHUNKS), place + 3, shared)
            chunks += 1
        row += rows
    return chunks


@compiled
def _alike(job: int, row: int) -> tuple[int, int]:
    """How many rows from one on make a chunk of several, and the keys they share; 1 and 0 if that one is alone."""
    rows, shared = 1, _keys_behind(job, row)
    while rows < min(ALIKE, word(job, J_CHUNK)) and row + rows < word(job, J_REQUESTS) and shared:
        common = _shared_keys(job, row, row + rows, shared)
        # Whoever shares less would have the others go through more keys alone.
        if common == 0 or (rows > 1 and common < shared):
            break
        rows, shared = rows + 1, common
    return rows, shared if rows > 1 else 0


@compiled
def _keys_behind(job: int, row: int) -> int:
    """Keys in whole blocks before a row's token, all of which it sees; 0 unless it has just one."""
    first = first_token(job, row)
    if word(job, J_WINDOW) > 0 or first_token(job, row + 1) - first != 1:
        return 0
    return int32(word(job, J_POSITIONS), first) // BLOCK * BLOCK


@compiled
def _shared_keys(job: int, row: int, other: int, most: int) -> int:
    """Keys of whole blocks, up to `most`, that lie in the same pages for two rows."""
    most = min(most, _keys_behind(job, other))
    table, width, page_size = word(job, J_TABLE), word(job, J_W), word(job, J_C)
    page = 0
    while page * page_size < most and int32(table, row * width + page) == int32(table, other * width + page):
        page += 1
    return min(page * page_size, most) // BLOCK * BLOCK
