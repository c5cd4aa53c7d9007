"""What proxies send as kv_transfer_params, and what else may come."""

from typing import Any

import pytest

from jaxllm.errors import RequestError
from jaxllm.requests.kv_transfer import (
    KEY,
    is_for_another,
    read_transfer_params,
    short_form,
    transfer_params,
    without_transfer,
)
from jaxllm.requests.sampling_params import SamplingParams

NAMED = {
    "do_remote_prefill": True, "do_remote_decode": False, "remote_block_ids": [[1, 2], [3]], "remote_engine_id": "e",
    "remote_request_id": "r", "remote_host": "127.0.0.1", "remote_port": 5, "remote_num_tokens": 32, "tp_size": 1,
    "transfer_mode": "pull",
}  # fmt: skip


@pytest.mark.parametrize("blocks", [[[1, 2], [3]], [1, 2], None])
def test_pages_of_another_engine(blocks: Any) -> None:
    found = read_transfer_params({**NAMED, "remote_block_ids": blocks})
    assert found is not None
    assert found.names_pages
    assert (found.remote_host, found.remote_port, found.remote_num_tokens) == ("127.0.0.1", 5, 32)
    assert transfer_params(SamplingParams(extra_args={KEY: short_form(found)})) == found


@pytest.mark.parametrize("lacking", ["remote_request_id", "remote_host", "remote_port"])
def test_pages_that_nobody_names_are_not_fetched(lacking: str) -> None:
    found = read_transfer_params({**NAMED, lacking: None})
    assert found is not None
    assert not found.names_pages
    empty = read_transfer_params({**NAMED, "remote_block_ids": []})
    assert empty is not None
    assert not empty.names_pages
    assert transfer_params(SamplingParams(extra_args={KEY: short_form(empty)})) == empty


def test_a_port_may_be_text() -> None:
    found = read_transfer_params({**NAMED, "remote_port": "14579"})
    assert found is not None
    assert found.remote_port == 14579


@pytest.mark.parametrize("given", [{}, {"do_remote_decode": False}, {"remote_host": "x"}])
def test_nothing_is_asked_for(given: dict[str, Any]) -> None:
    assert read_transfer_params(given) is None


def test_requests_for_another_engine() -> None:
    params = SamplingParams(extra_args={KEY: {"do_remote_decode": True}, "more": 1})
    assert is_for_another(params)
    assert without_transfer(params).extra_args == {"more": 1}
    assert not is_for_another(without_transfer(params))


@pytest.mark.parametrize(
    "given",
    [
        [], 3, "x", {"do_remote_decode": 1}, {**NAMED, "do_remote_decode": True}, {**NAMED, "remote_host": "a" * 300},
        {**NAMED, "remote_host": "a\nb"}, {**NAMED, "remote_host": ""}, {**NAMED, "remote_port": 0},
        {**NAMED, "remote_port": 1 << 16}, {**NAMED, "remote_port": 1.5}, {**NAMED, "remote_port": True},
        {**NAMED, "remote_num_tokens": -1}, {**NAMED, "remote_request_id": 7}, {**NAMED, "remote_engine_id": {}},
    ],
)  # fmt: skip
def test_what_is_refused(given: Any) -> None:
    with pytest.raises(RequestError, match=KEY) as error:
        read_transfer_params(given)
    assert error.value.parameter == KEY
