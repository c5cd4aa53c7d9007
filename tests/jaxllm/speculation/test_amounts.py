"""How many drafts a step brings."""

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from scipy.optimize import isotonic_regression

from jaxllm.speculation.acceptance_rates import AcceptanceRates, by_streak
from jaxllm.speculation.amounts import StepLoad, chances_of, choose_amounts
from jaxllm.speculation.step_costs import StepCosts, fit_rising

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
    most = int(counts.max())
    chances = chances_of(np.repeat(rates[:, None], most + 1, axis=1), ahead.astype(np.int32), most)
    return choose_amounts(counts.astype(np.int32), chances, costs, load).tolist()


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


def rates_of(rates: AcceptanceRates, slot: int, most: int = 1) -> list[float]:
    return rates.of(np.array([slot], np.int32), most)[0].tolist()


def count(rates: AcceptanceRates, slot: int, hits: int, trials: int) -> None:
    rates.count(*(np.array([each], np.int32) for each in (slot, hits, trials)))


def test_rates_follow_what_is_found() -> None:
    rates = AcceptanceRates(3)
    for _ in range(30):
        count(rates, 0, 1, 1)
        count(rates, 1, 0, 1)
    assert rates_of(rates, 0)[0] > 0.9
    assert rates_of(rates, 1)[0] < 0.1
    assert rates_of(rates, 2) == [0.0], "whose text nobody has guessed at so far"
    count(rates, 2, 1, 1)
    assert 0.3 < rates_of(rates, 2)[0] < 0.6, "another begins with what holds of all"
    rates.begin(0)
    assert rates_of(rates, 0) == [0.0]


def test_a_text_that_is_left_is_doubtful_until_it_is_followed_again() -> None:
    rates = AcceptanceRates(2)
    for _ in range(40):
        # Three guesses in vain, and then twenty that are right.
        for hits, trials in [(0, 1)] * 3 + [(1, 1)] + [(4, 4)] * 4 + [(3, 4)]:
            count(rates, 0, hits, trials)
    after_a_change = rates_of(rates, 0, 8)
    assert after_a_change[0] < 0.4
    assert after_a_change == sorted(after_a_change), "each that is right makes the next one likelier"
    count(rates, 0, 1, 1)
    assert rates_of(rates, 0)[0] > 0.8
    count(rates, 0, 4, 4)
    assert min(rates_of(rates, 0, 4)) > 0.9
    count(rates, 1, 0, 1)
    assert rates_of(rates, 1)[0] < 0.4, "others begin doubtful, too"
    rates.interrupt(np.array([0], np.int32))
    assert rates_of(rates, 0)[0] < 0.4, "there was nothing to follow"


@given(st.lists(st.tuples(st.integers(0, 40), st.integers(0, 8), st.booleans()), max_size=6))
def test_trials_are_counted_where_their_streaks_put_them(rows: list[tuple[int, int, bool]]) -> None:
    streaks, hits = (np.array([row[column] for row in rows], np.int32) for column in (0, 1))
    trials = hits + np.array([row[2] for row in rows], np.int32)
    found_hits, found_trials = by_streak(streaks, hits, trials)
    limits = [1, 2, 3, 5, 9, 17]
    for row, (streak, right, ends) in enumerate(rows):
        wanted = [[0.0] * 7, [0.0] * 7]
        for place in range(right + ends):
            own = sum(streak + place >= limit for limit in limits)
            wanted[0][own] += place < right
            wanted[1][own] += 1
        assert [found_hits[row].tolist(), found_trials[row].tolist()] == wanted


@given(st.lists(st.lists(st.floats(0, 1), min_size=5, max_size=5), min_size=1, max_size=4), st.integers(0, 1))
def test_a_draft_is_accepted_if_all_guesses_up_to_it_are_right(rates: list[list[float]], ahead: int) -> None:
    found = chances_of(np.array(rates), np.full(len(rates), ahead, np.int32), 4)
    for own, row in zip(found, rates, strict=True):
        np.testing.assert_allclose(own, [np.prod(row[: place + 1 + ahead]) for place in range(4)])


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


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0.1, 10)), min_size=1, max_size=12))
def test_times_that_rise_are_those_of_isotonic_regression(rows: list[tuple[float, float]]) -> None:
    values, weights = (np.array(column) for column in zip(*rows, strict=True))
    found = np.empty(len(rows))
    fit_rising(values, weights, found)
    np.testing.assert_allclose(found, isotonic_regression(values, weights=weights).x, rtol=1e-9)


def test_one_step_that_was_held_up_does_not_make_larger_ones_look_slow() -> None:
    costs = costs_of({1: 0.010, 16: 0.012}, computes_padding=False)
    costs.observe(8, 0.500)
    for _ in range(20):
        costs.observe(16, 0.012)
    assert costs.of(np.array([16]))[0] < 0.013


def test_beyond_known_sizes_time_grows_as_it_has_grown() -> None:
    costs = costs_of({8: 0.010, 16: 0.020, 32: 0.040}, computes_padding=False)
    np.testing.assert_allclose(costs.of(np.array([64])), [0.080], rtol=1e-6)
    flat = costs_of({8: 0.010, 16: 0.010, 32: 0.010}, computes_padding=False)
    assert flat.of(np.array([64]))[0] < 0.016
