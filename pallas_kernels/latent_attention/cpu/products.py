"""A block of keys on its way through the rows of a state: latents are found, scores made, values weighed."""

from typing import Any

from numba.core import types

from jaxllm.pallas_kernels.cpu_common.attention_softmax import MASKED, soften
from jaxllm.pallas_kernels.cpu_common.attention_words import BLOCK, W_BYTES, W_H, W_K, W_N, W_POSITIONS
from jaxllm.pallas_kernels.cpu_common.memory import compiled, int32, set_word, word
from jaxllm.pallas_kernels.cpu_common.outer_tile import make_outer_tile
from jaxllm.pallas_kernels.cpu_common.vectors import LANES, emit_load, keep, load, operation, store, vector
from jaxllm.pallas_kernels.latent_attention.cpu.state import tile_parts
from jaxllm.pallas_kernels.latent_attention.cpu.tile import make_dot_tile
from jaxllm.pallas_kernels.latent_attention.cpu.work import RUN, RUNS, TILE, W_Z, latent_at


@compiled
def find_runs(work: int, row: int, begin: int, last: int, pages: int) -> None:
    """Addresses of the runs of a block from `begin` on, in the cache.

    For a row that ends at `last`; after it any key will do, since it is masked.
    """
    behind = (last - 1) // RUN * RUN
    for run in range(RUNS):
        set_word(pages, run, latent_at(work, row, min(begin + run * RUN, behind)))


def make_widen(kind: str) -> Any:
    """The function that has the latents of a block in float32, of a cache of a type (NumPy's name)."""
    read = operation(
        vector, (types.intp,) * 2, lambda builder, address, place: emit_load(builder, address, place, kind)
    )

    @compiled
    def widen(work: int, length: int, pages: int, wide: int) -> None:
        """Have `pages` be addresses of float32: `length` latents are copied to `wide` for that."""
        numbers = RUN * word(work, W_H)
        for run in range((length + RUN - 1) // RUN):
            to, source = wide + 4 * run * numbers, word(pages, run)
            for place in range(0, numbers, LANES):
                store(to, place, read(source, place))
            set_word(pages, run, to)

    @compiled
    def keep_float32(work: int, length: int, pages: int, wide: int) -> None:
        pass

    return keep_float32 if kind == "float32" else widen


def make_score() -> Any:
    """The function that makes the scores of a tile."""
    one, two, most = make_dot_tile(1), make_dot_tile(2), make_dot_tile(TILE)

    @compiled
    def score(work: int, rows: int, columns: int, queries: int, scores: int, pages: int) -> None:
        """Scores [rows, BLOCK] of `columns` keys, whole runs."""
        size = word(work, W_H)
        for column in range(0, columns, LANES // TILE if rows > 2 else LANES // rows):
            keys = word(pages, column // RUN) + 4 * (column % RUN) * size
            if rows > 2:
                most(queries, keys, size, size, scores + 4 * column, BLOCK)
            elif rows == 2:
                two(queries, keys, size, size, scores + 4 * column, BLOCK)
            else:
                one(queries, keys, size, size, scores + 4 * column, BLOCK)

    return score


@compiled
def soften_tile(work: int, rows: int, first: int, start: int, columns: int, state: int, tile: int, decays: int) -> None:
    """Mask the scores of a tile, of keys from `start` on, and make them weights. Row 0 of the state is of `first`."""
    members = word(work, W_N) // word(work, W_K)
    maxima, totals, scores, _, sums = tile_parts(work, state, tile // TILE)
    for row in range(rows):
        seen = int32(word(work, W_POSITIONS), first + (tile + row) // members) + 1 - start
        if seen < columns:
            line = scores + 4 * row * BLOCK
            for column in range(0, columns, LANES):
                store(line, column, keep(load(line, column), 0, seen - column, MASKED))
    soften(rows, scores, columns, maxima, totals, sums, word(work, W_Z), decays)


@compiled
def find_values(work: int, place: int, vectors: int, pages: int, nexts: int, runs: int, aheads: int) -> None:
    """Write to `runs` the addresses of vectors of values from number `place` on, run by run.

    To `aheads` goes what is needed next, in the runs of the cache at `nexts`.
    """
    for run in range(RUNS):
        for each in range(vectors):
            number, index = place + each * LANES, run * vectors + each
            set_word(runs, index, word(pages, run) + 4 * number)
            set_word(aheads, index, word(nexts, run) + word(work, W_BYTES) * number)


def make_weigh(vectors: int) -> Any:
    """The function that adds to some vectors of the sums of a tile."""
    one, two, most = (make_outer_tile(rows, vectors, "float32") for rows in (1, 2, TILE))

    @compiled
    def weigh(work: int, rows: int, length: int, weights: int, sums: int, runs: int, aheads: int) -> None:
        """Add `length` values, weighted, to the sums [rows, Z]; `runs` and `aheads` are those of `find_values`."""
        size, latent = word(work, W_H), word(work, W_Z)
        step = size * word(work, W_BYTES)
        if rows > 2:
            most(weights, BLOCK, runs, size, RUN, length, sums, latent, 1, aheads, step)
        elif rows == 2:
            two(weights, BLOCK, runs, size, RUN, length, sums, latent, 1, aheads, step)
        else:
            one(weights, BLOCK, runs, size, RUN, length, sums, latent, 1, aheads, step)

    return weigh
