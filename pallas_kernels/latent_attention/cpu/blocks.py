"""The rows of a state on their way through the keys of a row, block by block."""

from typing import Any

from jaxllm.pallas_kernels.cpu_common.attention_words import BLOCK, GROUP, VECTORS, W_K, W_N, W_POSITIONS
from jaxllm.pallas_kernels.cpu_common.bfloat16 import PAIRS
from jaxllm.pallas_kernels.cpu_common.memory import compiled, int32, word
from jaxllm.pallas_kernels.cpu_common.vectors import LANES
from jaxllm.pallas_kernels.latent_attention.cpu.products import (
    find_runs,
    join_pairs,
    make_find_values,
    make_gather,
    make_score,
    make_soften_tile,
    make_weigh,
    make_widen,
)
from jaxllm.pallas_kernels.latent_attention.cpu.state import tile_parts
from jaxllm.pallas_kernels.latent_attention.cpu.work import RUN, TILE, W_Z, block_parts


@compiled
def _length(work: int, first: int, tile: int, rows: int, start: int, stop: int) -> int:
    """How many keys from `start` up to `stop` the last query of a tile sees; none if not positive."""
    last = first + (min(tile + TILE, rows) - 1) // (word(work, W_N) // word(work, W_K))
    return min(stop, int32(word(work, W_POSITIONS), last) + 1) - start


def _make_score_all(kind: str) -> Any:
    score, soften_tile = make_score(kind), make_soften_tile(kind)

    @compiled
    def score_all(work: int, first: int, rows: int, state: int, start: int, stop: int, pages: int, decays: int) -> None:
        """Weights of the keys from `start` up to `stop`, for all rows of a state."""
        for tile in range(0, rows, TILE):
            count, length = min(TILE, rows - tile), _length(work, first, tile, rows, start, stop)
            if length > 0:
                columns = (length + RUN - 1) // RUN * RUN
                _, _, scores, queries, _ = tile_parts(work, state, tile // TILE)
                score(work, count, columns, queries, scores, pages)
                soften_tile(work, count, first, start, columns, state, tile, decays)

    return score_all


def _make_weigh_all(kind: str) -> Any:
    wide, narrow, find_values = make_weigh(VECTORS, kind), make_weigh(1, kind), make_find_values(kind)

    @compiled
    def weigh_all(
        work: int,
        first: int,
        rows: int,
        state: int,
        start: int,
        stop: int,
        pages: int,
        latents: int,
        nexts: int,
        runs: int,
        aheads: int,
    ) -> None:
        """Add the values of these keys to the sums of all rows."""
        place = 0
        while place < word(work, W_Z):
            vectors = VECTORS if place + GROUP <= word(work, W_Z) else 1
            find_values(work, place, vectors, pages, latents, nexts, runs, aheads)
            for tile in range(0, rows, TILE):
                count, length = min(TILE, rows - tile), _length(work, first, tile, rows, start, stop)
                if length > 0:
                    _, _, weights, _, sums = tile_parts(work, state, tile // TILE)
                    if vectors > 1:
                        wide(work, count, length, weights, sums + 4 * place, runs, aheads)
                    else:
                        narrow(work, count, length, weights, sums + 4 * place, runs, aheads)
            place += vectors * LANES

    return weigh_all


def make_go_through(kind: str, *, is_chosen: bool) -> Any:
    """The function that does so, for a cache of a type (NumPy's name), or one of bfloat16 that is taken as `PAIRS`.

    If `is_chosen`, keys may lie anywhere.
    """
    inner = PAIRS if kind == PAIRS else "float32"
    is_joined, gather = kind == PAIRS or not is_chosen, make_gather(kind)
    arrange = join_pairs if kind == PAIRS else make_widen(kind)
    score_all, weigh_all = _make_score_all(inner), _make_weigh_all(inner)

    @compiled
    def go_through(work: int, row: int, first: int, rows: int, state: int, memory: int, begin: int, end: int) -> None:
        """Have the rows of a state, of tokens from `first` on, see the keys of a row from `begin` up to `end`."""
        latents, decays, pages, nexts, runs, aheads = block_parts(work, memory)
        for start in range(begin, end, BLOCK):
            stop = min(start + BLOCK, end)
            if is_chosen:
                gather(work, row, start, stop - start, end, pages, latents)
            else:
                find_runs(work, row, start, end, pages)
                find_runs(work, row, start + BLOCK, end, nexts)
            if is_joined:
                arrange(work, stop - start, pages, latents)
            score_all(work, first, rows, state, start, stop, pages, decays)
            ahead = pages if is_chosen else nexts
            weigh_all(work, first, rows, state, start, stop, pages, latents, ahead, runs, aheads)

    return go_through
