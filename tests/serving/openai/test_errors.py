"""Exceptions as answers."""

import pytest

from jaxllm.errors import QueueFullError, RequestError, RequestFaultError
from jaxllm.serving.http.errors import describe


@pytest.mark.parametrize(("seconds", "header"), [(0.0, "1"), (0.2, "1"), (0.49, "1"), (1.0, "1"), (2.6, "3")])
def test_a_full_queue_asks_for_a_second_at_least(seconds: float, header: str) -> None:
    found = describe(QueueFullError("full", retry_after=seconds), "id")
    assert (found.status, found.headers) == (503, {"Retry-After": header})


def test_whose_fault_a_logits_processor_is() -> None:
    """The operator's code fails: not the client's fault. Its arguments are wrong: under the name that it gave them."""
    found = describe(RequestFaultError("the logits processor m:K has failed: OSError"), "id")
    assert (found.status, found.details.param) == (500, None)
    found = describe(RequestError("extra_args: 9 bytes; at most 8 are allowed", "extra_args"), "id")
    assert (found.status, found.details.param) == (400, "vllm_xargs")
    assert found.details.message == "vllm_xargs: 9 bytes; at most 8 are allowed"
