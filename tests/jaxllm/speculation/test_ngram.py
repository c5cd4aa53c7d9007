"""Prompt lookup against a search of the whole text, and against transformers' own."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxllm.requests.request import Request
from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.scheduler.table import RequestTable
from jaxllm.speculation.ngram import NgramDrafter
from jaxllm.speculation.text_index import MOST_PLACES

LENGTH = 64


def table_with(texts: list[list[int]]) -> tuple[RequestTable, np.ndarray]:
    """A table in which each text is the prompt of a request, and their slots."""
    table = RequestTable(len(texts), LENGTH, 4)
    slots = []
    for index, text in enumerate(texts):
        request = Request(
            request_id=str(index), prompt_token_ids=np.array(text, np.int32), params=SamplingParams(max_tokens=1)
        )
        slots.append(table.insert(request, np.zeros(0, np.int32), 0))
    return table, np.array(slots, np.int32)


def looked_up(text: list[int], limit: int, smallest: int, largest: int) -> list[int]:
    """The tokens that followed the last occurrence of the longest repeated ending."""
    for count in range(min(largest, len(text) - 1), smallest - 1, -1):
        for place in range(len(text) - 1, count - 1, -1):
            if text[place - count : place] == text[-count:]:
                found = list(text)
                for index in range(limit):
                    found.append(found[place + index])
                return found[len(text) :]
    return []


@given(
    st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=LENGTH - 1), min_size=1, max_size=4),
    st.integers(1, 3),
    st.integers(0, 3),
    st.integers(1, 8),
)
def test_it_finds_what_a_search_of_the_text_finds(texts: list[list[int]], smallest: int, more: int, limit: int) -> None:
    assert MOST_PLACES >= LENGTH
    table, slots = table_with(texts)
    drafter = NgramDrafter(len(texts), LENGTH, smallest, smallest + more)
    limits = np.full(len(texts), limit, np.int32)
    for length in range(1, LENGTH):
        # The texts grow token by token, as outputs do.
        for slot, text in zip(slots, texts, strict=True):
            table.num_tokens[slot] = min(length, len(text))
        counts, drafts = drafter.propose(table, slots, limits)
        expected = [looked_up(text[:length], limit, smallest, smallest + more) for text in texts]
        assert counts.tolist() == [len(own) for own in expected]
        assert drafts.tolist() == [token for own in expected for token in own]


def test_a_slot_with_another_request_forgets_the_one_before() -> None:
    table, slots = table_with([[1, 2, 3, 4, 1, 2]])
    drafter = NgramDrafter(1, LENGTH, 2, 3)
    limits = np.array([2], np.int32)
    assert drafter.propose(table, slots, limits)[1].tolist() == [3, 4]
    table.remove(int(slots[0]))
    again, slots = table_with([[1, 2]])
    again.generation[:] = table.generation + 1
    assert drafter.propose(again, slots, limits)[0].tolist() == [0]


def test_tokens_that_a_step_did_not_accept_are_not_in_the_index() -> None:
    table, slots = table_with([[5, 6, 7]])
    drafter = NgramDrafter(1, LENGTH, 2, 3)
    limits = np.array([4], np.int32)
    table.token_ids[slots[0], 3:6] = [5, 6, 9]  # drafts, which are beyond the known tokens
    assert drafter.propose(table, slots, limits)[0].tolist() == [0]
    table.token_ids[slots[0], 3:6] = [8, 5, 6]
    table.num_tokens[slots[0]] = 6
    assert drafter.propose(table, slots, limits)[1].tolist() == [7, 8, 5, 6]


@pytest.mark.parametrize("seed", range(5))
def test_where_there_is_one_place_transformers_finds_the_same(seed: int) -> None:
    torch = pytest.importorskip("torch")
    candidates = pytest.importorskip("transformers.generation.candidate_generator")
    rng = np.random.default_rng(seed)
    body = rng.permutation(40)
    begin = int(rng.integers(0, 30))
    text = [*body.tolist(), 50, *body[begin : begin + 4].tolist()]
    generator = candidates.PromptLookupCandidateGenerator(
        num_output_tokens=5, max_matching_ngram_size=3, max_length=LENGTH
    )
    theirs = generator.get_candidates(torch.tensor([text]))[0][0, len(text) :].tolist()
    table, slots = table_with([text])
    counts, drafts = NgramDrafter(1, LENGTH, 1, 3).propose(table, slots, np.array([5], np.int32))
    assert drafts[: len(theirs)].tolist() == theirs
    assert counts.tolist() == [5]
