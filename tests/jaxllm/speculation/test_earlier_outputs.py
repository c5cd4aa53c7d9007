"""Drafts from earlier outputs: whose they may be, and how much is kept."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxllm.requests.owners import Owner
from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.scheduler.table import RequestTable
from jaxllm.speculation.earlier_outputs import MOST_OWNERS, EarlierOutputsDrafter
from jaxllm.speculation.ngram import NgramDrafter

LENGTH, KEPT = 64, 128
ONE, OTHER = Owner("one"), Owner("other")


def request(tokens: list[int], owner: Owner = ONE, salt: str | None = None) -> Request:
    return Request(
        request_id="r", prompt_token_ids=np.array(tokens, np.int32), params=SamplingParams(max_tokens=1),
        owner=owner, cache_salt=salt,
    )  # fmt: skip


def drafter() -> EarlierOutputsDrafter:
    return EarlierOutputsDrafter(NgramDrafter(1, LENGTH, 2, 4), KEPT, 4, 2)


def answered(made: EarlierOutputsDrafter, output: list[int], owner: Owner = ONE, salt: str | None = None) -> None:
    ended = request([1], owner, salt)
    ended.output_token_ids = output
    made.forget(ended)


def drafts(made: EarlierOutputsDrafter, tokens: list[int], owner: Owner = ONE, salt: str | None = None) -> list[int]:
    table = RequestTable(1, LENGTH, 4)
    slot = table.insert(request(tokens, owner, salt), np.zeros(0, np.int32), 0)
    counts, ids = made.propose(table, np.array([slot], np.int32), np.array([3], np.int32))
    assert counts.tolist() == [len(ids)]
    return ids.tolist()


def test_an_output_is_followed_by_requests_of_its_owner_alone() -> None:
    made = drafter()
    answered(made, [10, 11, 12, 13, 14])
    assert drafts(made, [5, 10, 11]) == [12, 13, 14]
    assert drafts(made, [5, 12, 13]) == [14]
    assert drafts(made, [5, 10, 11], OTHER) == []
    assert drafts(made, [5, 10, 11], ONE, "salt") == []


def test_the_longer_match_wins_and_the_own_text_of_two_as_long() -> None:
    made = drafter()
    answered(made, [1, 10, 11, 20, 21])
    assert drafts(made, [10, 11, 30, 31, 10, 11]) == [30, 31, 10]
    assert drafts(made, [10, 11, 30, 31, 1, 10, 11]) == [20, 21]


@given(st.lists(st.lists(st.integers(0, 5), max_size=90), max_size=12))
def test_however_much_is_kept_drafts_are_of_one_earlier_output(outputs: list[list[int]]) -> None:
    made = drafter()
    for output in outputs:
        answered(made, output)
    for output in outputs[-1:]:
        for end in range(2, min(len(output), KEPT // 2)):
            found = drafts(made, [9, *output[max(0, end - 3) : end]])
            assert not found or any(_has(each[: KEPT // 2], found) for each in outputs)


def _has(text: list[int], part: list[int]) -> bool:
    return any(text[place : place + len(part)] == part for place in range(len(text)))


def test_no_more_owners_are_kept_than_agreed() -> None:
    made = drafter()
    for index in range(MOST_OWNERS + 9):
        answered(made, [10, 11, 12, 13], Owner(f"owner {index}"))
    assert made.num_owners == MOST_OWNERS
    assert drafts(made, [10, 11], Owner("owner 0")) == []
    assert drafts(made, [10, 11], Owner(f"owner {MOST_OWNERS + 8}")) == [12, 13]
