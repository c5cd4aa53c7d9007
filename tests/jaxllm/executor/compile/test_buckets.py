import pytest

from jaxllm.executor.compile.buckets import Bucket, Buckets


def test_powers_of_two_and_the_budget() -> None:
    buckets = Buckets(max_num_batched_tokens=48, max_num_seqs=8)
    assert [bucket.tokens for bucket in buckets.all] == [1, 8, 16, 32, 48]
    assert [bucket.rows for bucket in buckets.all] == [1, 8, 8, 8, 8]
    assert buckets.largest == Bucket(48, 8)


@pytest.mark.parametrize("budget", [1, 2, 3, 16, 100, 512])
def test_fit_is_the_smallest_that_holds(budget: int) -> None:
    buckets = Buckets(budget, 4)
    for tokens in range(1, budget + 1):
        fit = buckets.fit(tokens)
        assert fit.tokens >= tokens
        assert all(other.tokens < tokens for other in buckets.all if other.tokens < fit.tokens)
