"""Ids of requests, as callers give them."""

import pytest

from jaxllm.errors import RequestError
from jaxllm.requests.request import as_request_ids


def test_a_string_is_one_id() -> None:
    assert as_request_ids("10") == ["10"]
    assert as_request_ids(["10", "1"]) == as_request_ids(iter(("10", "1"))) == ["10", "1"]
    assert as_request_ids("") == [""]
    with pytest.raises(RequestError, match="request_ids: expected a string or a list of strings, got int"):
        as_request_ids(10)  # type: ignore[arg-type]
