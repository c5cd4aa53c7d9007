"""Slices of layers: which page table and which layer of the cache each has."""

import pytest

from jaxllm.models.cache_plan import CachePlan, plan_cache
from jaxllm.models.errors import ModelError
from jaxllm.models.pattern import segments_of
from jaxllm.models.plan import LayerPlan
from jaxllm.models.recurrent_plan import ShortConvolutionPlan


def layers_of(windows: list[int]) -> tuple[LayerPlan, ...]:
    return tuple(LayerPlan().attending(window=window) for window in windows)


def check(plan: CachePlan, windows: list[int]) -> None:
    """Every layer has a place of its own, in a table of its window."""
    assert [plan.windows[table] for table in plan.tables] == windows
    assert len(set(zip(plan.tables, plan.places, strict=True))) == len(windows)
    assert max(plan.places) < plan.depth
    assert list(plan.windows) == sorted(plan.windows), "tables with equal windows are neighbours"


@pytest.mark.parametrize(
    ("windows", "tables", "depth"),
    [
        ([0] * 6, 1, 6),
        ([7] * 6, 1, 6),
        ([7, 0] * 12, 2, 12),
        (([7] * 5 + [0]) * 8, 6, 8),
        (([7] * 5 + [0]) * 10 + [7] * 2, 7, 10),
        (([7] * 5 + [0]) * 5 + [7] * 4, 7, 5),
        ([0] * 3 + [7] * 4, 3, 3),
        ([0] * 9 + [7] * 10, 2, 10),
        ([7] * 63 + [0], 17, 4),
        ([7, 9, 0] * 4, 3, 4),
    ],
    ids=["full", "all_windows", "gpt_oss", "gemma_12b", "gemma_27b", "gemma_4b", "cut", "filled", "one_full", "three"],
)
def test_slices(windows: list[int], tables: int, depth: int) -> None:
    plan = plan_cache(layers_of(windows))
    check(plan, windows)
    assert (plan.num_tables, plan.depth) == (tables, depth)


def test_layers_that_a_scan_repeats_stay_in_one_slice() -> None:
    """Then the page table that a scanned layer follows is known when it is compiled."""
    for windows in (([7] * 5 + [0]) * 8, ([7] * 5 + [0]) * 10 + [7] * 2, [7, 0] * 12):
        layers = layers_of(windows)
        plan = plan_cache(layers)
        for segment in segments_of(layers):
            for place in range(segment.period):
                assert len({plan.tables[layer] for layer in segment.layers(place)}) == 1


def test_one_table_is_what_a_model_without_windows_has() -> None:
    assert plan_cache(layers_of([0] * 4)) == CachePlan(
        (0,), (0,) * 4, (0, 1, 2, 3), 4, (None,) * 4, shares=(1,) * 4, parts=(0,) * 4
    )
    assert plan_cache(layers_of([7, 0] * 2), by_window=False) == plan_cache(layers_of([0] * 4))


def test_layers_with_other_heads_share_places() -> None:
    """Gemma 4 31B: a layer without a window has half the keys and values, two of them are in one place."""
    layers = layers_of(([7] * 5 + [0]) * 10)
    sizes = tuple(8192 if layer.attention.window else 4096 for layer in layers)
    plan = plan_cache(layers, sizes=sizes)
    assert (plan.depth, plan.num_tables, plan.windows.count(0)) == (5, 11, 1)
    where = list(zip(plan.tables, plan.places, plan.parts, strict=True))
    assert len(set(where)) == len(layers)
    assert all(0 <= part < share for part, share in zip(plan.parts, plan.shares, strict=True))
    assert {share for share, layer in zip(plan.shares, layers, strict=True) if not layer.attention.window} == {2}
    # In one table they have places alongside the others.
    whole = plan_cache(layers, sizes=sizes, by_window=False)
    assert (whole.depth, whole.num_tables) == (50 + 5, 1)
    assert len(set(zip(whole.places, whole.parts, strict=True))) == len(layers)


def test_sizes_that_do_not_fit_together_are_an_error() -> None:
    with pytest.raises(ModelError, match="at most 64 are supported"):
        plan_cache(layers_of([7, 0]), sizes=(64, 65))
    assert plan_cache(layers_of([7, 0] * 6), sizes=(2, 3) * 6).shares[:2] == (3, 2)


def test_a_layer_that_reads_the_keys_of_another_is_where_they_are() -> None:
    own = layers_of([7, 7, 0, 7, 0])
    readers = (own[3].attending(source=3), own[4].attending(source=4)) * 2
    plan, alone = plan_cache((*own, *readers)), plan_cache(own)
    assert (plan.depth, plan.windows) == (alone.depth, alone.windows)
    where = list(zip(plan.tables, plan.places, plan.parts, strict=True))
    assert where[5:] == [where[3], where[4]] * 2


def test_recurrent_layers_have_no_pages() -> None:
    """They are counted apart, those with equal states together; the others lie in pages without gaps."""
    narrow, wide = (LayerPlan(recurrence=ShortConvolutionPlan(channels=8, width=width)) for width in (3, 4))
    layers = (narrow, narrow, LayerPlan(), wide, narrow, LayerPlan(), wide)
    plan = plan_cache(layers)
    assert (plan.windows, plan.depth) == ((0,), 2)
    assert plan.groups == (0, 0, None, 1, 0, None, 1)
    assert plan.places == (0, 1, 0, 0, 2, 1, 1)
    assert [(group.arrays[0].shape, group.count) for group in plan.states] == [((2, 8), 3), ((3, 8), 2)]
    full, windowed = LayerPlan(), LayerPlan().attending(window=7)
    mixed = plan_cache((narrow, full, windowed) * 3)
    assert (mixed.windows, mixed.depth, mixed.groups) == ((0, 7), 3, (0, None, None) * 3)
    assert plan_cache((narrow,) * 3).depth == 0
