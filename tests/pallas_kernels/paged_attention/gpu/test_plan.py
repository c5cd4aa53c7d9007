"""Units of work cover every query and every key that it sees, once."""

import jax
import numpy as np
import pytest

from jaxllm.pallas_kernels.paged_attention.gpu.plan import Plan, plan_decode, plan_prefill
from jaxllm.pallas_kernels.paged_attention.inputs import Case, make_inputs
from jaxllm.pallas_kernels.short_rows import ShortRows

ROWS = ((1, 0), (1, 500), (1, 63), (1, 64), (2, 63), (4, 130), (40, 0), (7, 200), (129, 31))
CASE = Case("plan", ROWS, num_heads=1, num_kv_heads=1, head_size=16, padding_rows=3, padding_tokens=9)
TILE = 64
NUM_SHORT = {1: 4, 4: 6}
"""By the tokens that a short row has at most."""


def _units(plan: Plan) -> list[list[list[int]]]:
    """Units of each row, without padding: first query, position, first tile, end of the tiles."""
    units, first, counts = (np.asarray(array) for array in (plan.units, plan.first, plan.counts))
    taken = [place for start, count in zip(first, counts, strict=True) for place in range(start, start + count)]
    assert len(set(taken)) == len(taken)
    assert set(taken) == {place for place, unit in enumerate(units) if unit[3] < unit[4]}
    assert all(place < units[0, 6] for place in taken)
    return [units[start : start + count, 1:5].tolist() for start, count in zip(first, counts, strict=True)]


@pytest.mark.parametrize("most", [1, 4])
@pytest.mark.parametrize("window", [None, 0, 1, 70])
@pytest.mark.parametrize(("splits", "items"), [(1, 4), (4, 4), (4, 1000), (99, 1000)])
def test_decode(window: int | None, splits: int, items: int, most: int) -> None:
    batch = make_inputs(CASE).batch
    short = ShortRows.of(batch, most)
    plan = jax.jit(plan_decode, static_argnames=("window", "tile", "splits", "items", "num_kv_heads"))(
        batch, window=window, short=short, tile=TILE, splits=splits, items=items, num_kv_heads=2
    )
    begin = 0
    for row, units in enumerate(_units(plan)):
        if row >= NUM_SHORT[most]:
            assert units == []
            continue
        new, position = ROWS[row]
        tiles = [tile for *_, first, end in units for tile in range(first, end)]
        start = max(position - (window or 1 << 30) + 1, 0) // TILE
        assert tiles == list(range(start, (position + new - 1) // TILE + 1))
        assert len(units) <= splits
        assert all(unit[:2] == [begin, position] for unit in units)
        begin += new


@pytest.mark.parametrize("most", [1, 4])
@pytest.mark.parametrize("window", [None, 33])
def test_prefill(window: int | None, most: int) -> None:
    batch = make_inputs(CASE).batch
    plan = jax.jit(plan_prefill, static_argnames=("window", "tile", "tokens"))(
        batch, window=window, short=ShortRows.of(batch, most), tile=TILE, tokens=32
    )
    begin = 0
    for row, units in enumerate(_units(plan)):
        new, computed = ROWS[row] if row < len(ROWS) else (0, 0)
        if row < NUM_SHORT[most]:
            assert units == []
        else:
            blocks = [(ahead, min(ahead + 32, new)) for ahead in range(0, new, 32)]
            assert units == [
                [
                    begin + ahead,
                    computed + ahead,
                    max(computed + ahead + 1 - (window or 1 << 30), 0) // TILE,
                    -(-(computed + behind) // TILE),
                ]
                for ahead, behind in blocks
            ]
        begin += new
