"""How often, and how soon, something may be started again."""

from jaxllm.serving.ipc.client.supervisor import RestartBudget


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_so_many_within_the_window() -> None:
    clock = Clock()
    budget = RestartBudget(2, 100.0, clock)
    assert budget.take() == 0.0
    clock.now = 60.0
    assert budget.take() == 0.0
    clock.now = 99.0
    assert budget.take() is None
    clock.now = 101.0
    assert budget.take() == 0.0
    assert budget.take() is None
    assert "2 restarts within 100 s" in str(budget)


def test_those_that_follow_each_other_wait_longer_and_longer() -> None:
    clock = Clock()
    budget = RestartBudget(None, 100.0, clock)
    assert [budget.take() for _ in range(8)] == [0.0, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0]
    clock.now = 40.0
    assert budget.take() == 0.0


def test_none_at_all() -> None:
    budget = RestartBudget(0, 100.0)
    assert budget.take() is None
    assert not str(budget)
