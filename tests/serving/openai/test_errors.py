"""Exceptions as answers."""

import pytest

from jaxllm.errors import QueueFullError
from jaxllm.serving.http.errors import describe


@pytest.mark.parametrize(("seconds", "header"), [(0.0, "1"), (0.2, "1"), (0.49, "1"), (1.0, "1"), (2.6, "3")])
def test_a_full_queue_asks_for_a_second_at_least(seconds: float, header: str) -> None:
    found = describe(QueueFullError("full", retry_after=seconds), "id")
    assert (found.status, found.headers) == (503, {"Retry-After": header})
