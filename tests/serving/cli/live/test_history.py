from typing import Any

import pytest

from jaxllm.serving.cli.live.history import History

BOUNDS = {"first_token": [0.1, 0.2, 0.4]}


def snapshot(time: float, tokens: int, counts: tuple[int, ...] = (0, 0, 0, 0)) -> dict[str, Any]:
    counters = {"generation_tokens": tokens, "hits": tokens // 4}
    return {"time": time, "counters": counters, "histograms": {"first_token": list(counts)}}


def test_rates_are_of_the_last_five_seconds() -> None:
    history = History(BOUNDS)
    for time in range(11):
        history.add(snapshot(time, 10 * time if time <= 5 else 50 + 100 * (time - 5)))
    assert history.rate("generation_tokens") == pytest.approx(100)
    assert history.speeds() == pytest.approx([10] * 5 + [100] * 5)
    assert history.share("hits", "generation_tokens") == pytest.approx(137 / 550)


def test_one_snapshot_has_no_rates() -> None:
    history = History(BOUNDS)
    history.add(snapshot(3, 7))
    assert history.rate("generation_tokens") == 0
    assert history.share("hits", "generation_tokens") is None
    assert history.quantile("first_token", 0.5) is None
    assert history.speeds() == []


def test_quantiles_lie_within_a_bucket() -> None:
    history = History(BOUNDS)
    history.add(snapshot(0, 0, (100, 0, 0, 0)))
    history.add(snapshot(1, 9, (100, 4, 4, 0)))
    assert history.quantile("first_token", 0.25) == pytest.approx(0.15)
    assert history.quantile("first_token", 0.75) == pytest.approx(0.3)
    history.add(snapshot(2, 9, (100, 4, 4, 8)))
    assert history.quantile("first_token", 0.95) == pytest.approx(0.4)


def test_a_restart_and_old_snapshots_are_forgotten() -> None:
    history = History(BOUNDS)
    for time in range(300):
        history.add(snapshot(time, time))
    assert len(history.speeds()) == 120
    history.add(snapshot(301, 5))
    assert history.speeds() == []
