"""How many drafts a step brings."""

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from jaxllm.speculation.acceptance_rates import AcceptanceRates
from jaxllm.speculation.amounts import StepLoad, choose_amounts
from jaxllm.speculation.step_costs import StepCosts

SIZES = [1, 8, 16, 32, 64]
ROWS = st.lists(st.tuples(st.integers(0, 7), st.floats(0.0, 1.0), st.integers(0, 1)), min_size=1, max_size=20)


def costs_of(seconds: dict[int, float], *, computes_padding: bool = True) -> StepCosts:
    costs = StepCosts(SIZES, computes_padding=computes_padding)
    for tokens, each in seconds.items():
        costs.observe(tokens, each)
    return costs


FLAT = costs_of(dict.fromkeys(SIZES, 1.0))


def chosen(rows: list[tuple[int, float, int]], costs: StepCosts, *, gap: float = 0.0, others: int = 0) -> list[int]:
    counts, rates, ahead = (np.array(column) for column in zip(*rows, strict=True))
    load = StepLoad(len(rows), len(rows) + others, SIZES[-1], gap)
    return choose_amounts(counts.astype(np.int32), rates, ahead.astype(np.int32), costs, load).tolist()


@given(ROWS, st.integers(0, 44), st.lists(st.floats(0.1, 10), min_size=5, max_size=5))
def test_never_more_than_there_are_nor_than_a_step_holds(
    rows: list[tuple[int, float, int]], others: int, seconds: list[float]
) -> None:
    found = chosen(rows, costs_of(dict(zip(SIZES, seconds, strict=True))), others=others)
    assert all(0 <= own <= count for own, (count, _, _) in zip(found, rows, strict=True))
    assert sum(found) + len(rows) + others <= SIZES[-1]


@given(ROWS)
def test_where_tokens_cost_nothing_all_that_may_be_right_are_tried(rows: list[tuple[int, float, int]]) -> None:
    assume(sum(count for count, _, _ in rows) + len(rows) <= SIZES[-1])
    assume(all(rate > 0.05 for _, rate, _ in rows))
    gain = sum(rate ** (1 + ahead) for count, rate, ahead in rows if count)
    assume(gain > 0.11 * len(rows))
    assert chosen(rows, FLAT) == [count for count, _, _ in rows]


def test_drafts_fill_a_shape_and_do_not_cross_into_one_that_costs_more() -> None:
    doubling = costs_of({size: float(size) for size in SIZES})
    assert sum(chosen([(7, 0.9, 0)] * 3, doubling)) == 5
    assert chosen([(7, 0.9, 0)] * 8, doubling) == [0] * 8
    assert chosen([(7, 0.9, 0)], costs_of({1: 1.0, 8: 1.2, 16: 2.0, 32: 4.0, 64: 8.0})) == [7]


def test_the_likeliest_get_what_room_there_is() -> None:
    costs = costs_of({1: 1.0, 8: 1.1, 16: 50.0, 32: 90.0, 64: 180.0})
    assert chosen([(7, 0.95, 0), (7, 0.2, 0), (7, 0.0, 0)], costs) == [5, 0, 0]


def test_a_wait_for_the_host_must_be_worth_it() -> None:
    assert chosen([(7, 0.1, 0)] + [(0, 0.0, 0)] * 7, FLAT, gap=0.1) == [0] * 8
    assert chosen([(7, 0.9, 0)] * 4, FLAT, gap=0.1) == [7] * 4


def test_rates_follow_what_is_found() -> None:
    rates = AcceptanceRates(3)
    slots = np.array([0, 1], np.int32)
    for _ in range(30):
        rates.count(slots, np.array([1, 0], np.int32), np.array([1, 1], np.int32))
    always, never = rates.of(slots)
    assert always > 0.9
    assert never < 0.1
    assert 0.3 < rates.of(np.array([2]))[0] < 0.6, "another begins with what holds of all"
    rates.begin(0)
    assert rates.of(np.array([0]))[0] < 0.6


def test_what_a_step_takes_is_learnt_and_an_outlier_is_not() -> None:
    costs = StepCosts(SIZES, computes_padding=False)
    for _ in range(20):
        costs.observe(8, 0.010)
        costs.observe(16, 0.020)
    costs.observe(8, 60.0)
    small, between, large = costs.of(np.array([8, 12, 16]))
    assert 0.010 <= small < 0.013
    assert small < between < large
    assert costs.of(np.array([64]))[0] > large, "a size without a step is guessed from the nearest"
