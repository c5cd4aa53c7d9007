"""A block of keys on its way through the rows of a state: latents are found, scores made, values weighed."""

from typing import Any

from llvmlite import ir
from numba.core import types

from jaxllm.pallas_kernels.cpu_common.attention_softmax import MASKED, soften, soften_narrow
from jaxllm.pallas_kernels.cpu_common.attention_words import BLOCK, W_BYTES, W_H, W_K, W_N, W_POSITIONS, first_seen
from jaxllm.pallas_kernels.cpu_common.bfloat16 import PAIRS, store_narrow
from jaxllm.pallas_kernels.cpu_common.memory import compiled, int32, set_word, word
from jaxllm.pallas_kernels.cpu_common.outer_tile import make_outer_tile
from jaxllm.pallas_kernels.cpu_common.vectors import (
    INT,
    INTS,
    LANES,
    emit_load,
    integer,
    keep,
    load,
    operation,
    pointer,
    store,
    vector,
)
from jaxllm.pallas_kernels.latent_attention.cpu.state import tile_parts
from jaxllm.pallas_kernels.latent_attention.cpu.tile import make_dot_tile
from jaxllm.pallas_kernels.latent_attention.cpu.work import RUN, RUNS, TILE, W_APART, W_TOKEN, W_Z, latent_at


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
        key_size, token_bytes = word(work, W_H), word(work, W_TOKEN) * word(work, W_BYTES)
        for run in range((length + RUN - 1) // RUN):
            to, source = wide + 4 * run * RUN * key_size, word(pages, run)
            for key in range(RUN):
                for place in range(0, key_size, LANES):
                    store(to, key * key_size + place, read(source + key * token_bytes, place))
            set_word(pages, run, to)

    @compiled
    def keep_float32(work: int, length: int, pages: int, wide: int) -> None:
        pass

    return keep_float32 if kind == "float32" else widen


def make_gather(kind: str) -> Any:
    """The function that has the latents of a block side by side, of keys that may lie anywhere.

    In float32, of a cache of a type (NumPy's name), or as they are in one of `PAIRS`.
    """
    is_paired = kind == PAIRS
    read = operation(
        vector,
        (types.intp,) * 2,
        lambda builder, address, place: emit_load(builder, address, place, "bfloat16" if is_paired else kind),
    )
    write, bytes_each = (store_narrow, 2) if is_paired else (store, 4)

    @compiled
    def gather(work: int, row: int, begin: int, length: int, last: int, pages: int, latents: int) -> None:
        """Copy `length` latents, whole runs, to `latents`, and have `pages` be where they are."""
        key_size, own = word(work, W_H), latents + (2 * BLOCK * word(work, W_Z) if is_paired else 0)
        for key in range((length + RUN - 1) // RUN * RUN):
            # After those that are seen any key will do.
            source, to = latent_at(work, row, min(begin + key, last - 1)), own + bytes_each * key * key_size
            for place in range(0, key_size, LANES):
                write(to, place, read(source, place))
        for run in range(RUNS):
            set_word(pages, run, own + bytes_each * run * RUN * key_size)

    return gather


_SHORT = ir.IntType(16)
_SHORTS = ir.VectorType(_SHORT, LANES)


def _emit_interleave(builder: ir.IRBuilder, to: ir.Value, first: ir.Value, second: ir.Value, place: ir.Value) -> None:
    """`LANES` numbers of bfloat16 of two rows, from `place` on, as pairs."""
    lower, upper = (
        builder.zext(
            builder.load(builder.bitcast(pointer(builder, row, place, _SHORT), _SHORTS.as_pointer()), align=2), INTS
        )
        for row in (first, second)
    )
    target = builder.bitcast(pointer(builder, to, place, INT), INTS.as_pointer())
    builder.store(builder.or_(lower, builder.shl(upper, integer(16))), target, align=4)


_interleave = operation(types.void, (types.intp,) * 4, _emit_interleave)


@compiled
def join_pairs(work: int, length: int, pages: int, joined: int) -> None:
    """Copy `length` latents, whole runs, to `joined` [BLOCK / 2, Z]: the same number of two keys is a pair of bfloat16.

    The last key may have a partner that is not there yet, which is finite and whose weight is 0.
    """
    latent, key_bytes = word(work, W_Z), 2 * word(work, W_APART)
    for run in range((length + RUN - 1) // RUN):
        for pair in range(RUN // 2):
            first = word(pages, run) + 2 * pair * key_bytes
            to = joined + 4 * (run * (RUN // 2) + pair) * latent
            for place in range(0, latent, LANES):
                _interleave(to, first, first + key_bytes, place)


def make_score(kind: str) -> Any:
    """The function that makes the scores of a tile, of keys in float32 or of `PAIRS`."""
    one, two, most = (make_dot_tile(rows, kind) for rows in (1, 2, TILE))
    together = 2 if kind == PAIRS else 1

    @compiled
    def score(work: int, rows: int, columns: int, queries: int, scores: int, pages: int) -> None:
        """Scores [rows, BLOCK] of `columns` keys, whole runs."""
        stride, size, apart = word(work, W_H), word(work, W_H) // together, word(work, W_APART) // together
        for column in range(0, columns, LANES // TILE if rows > 2 else LANES // rows):
            keys = word(pages, column // RUN) + 4 * (column % RUN) * apart
            if rows > 2:
                most(queries, stride, keys, apart, size, scores + 4 * column, BLOCK)
            elif rows == 2:
                two(queries, stride, keys, apart, size, scores + 4 * column, BLOCK)
            else:
                one(queries, stride, keys, apart, size, scores + 4 * column, BLOCK)

    return score


def make_soften_tile(kind: str) -> Any:
    """`soften_tile`, whose weights become bfloat16 for `PAIRS`."""
    weights_of = soften_narrow if kind == PAIRS else soften

    @compiled
    def soften_tile(
        work: int, rows: int, first: int, start: int, columns: int, state: int, tile: int, decays: int
    ) -> None:
        """Mask the scores of a tile, of keys from `start` on, and make them weights.

        Row 0 of the state is of `first`.
        """
        members = word(work, W_N) // word(work, W_K)
        maxima, totals, scores, _, sums = tile_parts(work, state, tile // TILE)
        for row in range(rows):
            position = int32(word(work, W_POSITIONS), first + (tile + row) // members)
            begin, seen = first_seen(work, position) - start, position + 1 - start
            if begin > 0 or seen < columns:
                line = scores + 4 * row * BLOCK
                for column in range(0, columns, LANES):
                    store(line, column, keep(load(line, column), begin - column, seen - column, MASKED))
        weights_of(rows, scores, columns, maxima, totals, sums, word(work, W_Z), decays)

    return soften_tile


def make_find_values(kind: str) -> Any:
    """`find_values` of latents in float32, or of those that `join_pairs` has joined."""
    is_paired = kind == PAIRS

    @compiled
    def find_values(
        work: int, place: int, vectors: int, pages: int, joined: int, nexts: int, runs: int, aheads: int
    ) -> None:
        """Write to `runs` the addresses of vectors of values from number `place` on, run by run.

        To `aheads` goes what is needed next, in the runs of the cache at `nexts`.
        """
        for run in range(RUNS):
            latents = joined + 4 * run * (RUN // 2) * word(work, W_Z) if is_paired else word(pages, run)
            for each in range(vectors):
                number, index = place + each * LANES, run * vectors + each
                set_word(runs, index, latents + 4 * number)
                set_word(aheads, index, word(nexts, run) + word(work, W_BYTES) * number)

    return find_values


def make_weigh(vectors: int, kind: str) -> Any:
    """The function that adds to some vectors of the sums of a tile."""
    one, two, most = (make_outer_tile(rows, vectors, kind) for rows in (1, 2, TILE))
    together, is_paired = (2 if kind == PAIRS else 1), kind == PAIRS

    @compiled
    def weigh(work: int, rows: int, length: int, weights: int, sums: int, runs: int, aheads: int) -> None:
        """Add `length` values, weighted, to the sums [rows, Z]; `runs` and `aheads` are those of `find_values`."""
        latent, run = word(work, W_Z), RUN // together
        size = latent if is_paired else word(work, W_APART)
        step, steps = together * word(work, W_TOKEN) * word(work, W_BYTES), (length + together - 1) // together
        if rows > 2:
            most(weights, BLOCK, runs, size, run, steps, sums, latent, 1, aheads, step)
        elif rows == 2:
            two(weights, BLOCK, runs, size, run, steps, sums, latent, 1, aheads, step)
        else:
            one(weights, BLOCK, runs, size, run, steps, sums, latent, 1, aheads, step)

    return weigh
