"""The table of running requests: stop conditions, and slots that change hands."""

import numpy as np
import pytest

from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.scheduler.table import RequestTable

EOS = 2


def request_of(params: SamplingParams, prompt: int = 3) -> Request:
    return Request(
        request_id="r", prompt_token_ids=np.arange(10, 10 + prompt, dtype=np.int32), params=params, eos_token_ids=(EOS,)
    )


def table_with(*params: SamplingParams, max_model_len: int = 10) -> RequestTable:
    table = RequestTable(4, max_model_len, 5)
    for each in params:
        table.insert(request_of(each), np.array([1, 2], np.int32), 0)
    return table


def append(table: RequestTable, *tokens: int) -> list[bool]:
    """Append to slots 0, 1, ..."""
    ended = table.append(np.arange(len(tokens), dtype=np.int32), np.array(tokens, np.int32))
    return [bool(each) for each in ended.tolist()]


@pytest.mark.parametrize(
    ("params", "tokens", "reason"),
    [
        (SamplingParams(), [5, EOS], EOS),
        (SamplingParams(ignore_eos=True, max_tokens=3), [EOS, EOS, EOS], None),
        (SamplingParams(stop_token_ids=[7]), [5, 7], 7),
        (SamplingParams(stop_token_ids=[EOS], ignore_eos=True), [EOS], EOS),
        (SamplingParams(max_tokens=2), [5, 5], None),
        (SamplingParams(max_tokens=None), [5] * 7, None),
        (SamplingParams(max_tokens=100), [5] * 7, None),
        (SamplingParams(min_tokens=2), [EOS, EOS], EOS),
        (SamplingParams(min_tokens=7), [EOS] * 7, EOS),
        (SamplingParams(min_tokens=8), [EOS] * 7, None),
        (SamplingParams(min_tokens=2**40, max_tokens=None), [EOS] * 7, None),
        (SamplingParams(max_tokens=1, min_tokens=1), [5], None),
        (SamplingParams(max_tokens=1), [EOS], EOS),
        (SamplingParams(stop_token_ids=list(range(20, 40))), [5, 39], 39),
        (SamplingParams(stop_token_ids=list(range(20, 40)), min_tokens=2), [39, 20], 20),
        (SamplingParams(stop_token_ids=list(range(20, 27))), [27, 26], 26),
    ],
)
def test_a_request_ends_exactly_at(params: SamplingParams, tokens: list[int], reason: int | None) -> None:
    table = table_with(params)
    for token in tokens[:-1]:
        assert append(table, token) == [False]
    assert append(table, tokens[-1]) == [True]
    assert table.stop_of(0) == reason
    assert table.output_tokens(0).tolist() == tokens


def test_rows_stop_independently() -> None:
    many = list(range(20, 40))
    table = table_with(SamplingParams(), SamplingParams(stop_token_ids=many), SamplingParams(max_tokens=1))
    assert append(table, 25, 25, 25) == [False, True, True]


def test_a_new_owner_finds_nothing_of_the_old_one() -> None:
    table = table_with(SamplingParams(stop_token_ids=list(range(20, 40)), max_tokens=5), SamplingParams())
    append(table, 5)
    before = int(table.generation[0])
    old = table.remove(0)
    assert (old.slot, old.output_token_ids) == (-1, [5])
    assert table.generation[0] != before
    assert not table.block_table[0].any()
    table.check_integrity()
    new = request_of(SamplingParams(), prompt=1)
    assert table.insert(new, np.array([4], np.int32), 0) == 0
    assert append(table, 25) == [False]
    assert table.block_table[0].tolist() == [4, 0, 0, 0, 0]
    assert table.requests[0] is new
    table.check_integrity()


def test_a_resumed_request_brings_its_output() -> None:
    table = table_with(SamplingParams(max_tokens=3))
    append(table, 5)
    append(table, 6)
    request = table.remove(0)
    slot = table.insert(request, np.array([3, 4], np.int32), 4)
    assert table.token_ids[slot, :5].tolist() == [10, 11, 12, 5, 6]
    assert (table.num_tokens[slot], table.num_computed[slot]) == (5, 4)
    assert append(table, 7) == [True]
    assert table.pages(slot).tolist() == [3, 4]
    assert table.num_free_slots == 3
