"""Which tokens of a step with drafts are part of the outputs."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from jaxllm.speculation.acceptance import accept_drafts
from jaxllm.speculation.statistics import DraftCounts


def some_tokens(count: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, 2), min_size=count, max_size=count)


ROWS = st.lists(
    st.integers(0, 5).flatmap(lambda count: st.tuples(some_tokens(count + 1), some_tokens(count))),
    min_size=1,
    max_size=6,
)


def accepted(sampled: list[int], drafts: list[int]) -> list[int]:
    """One token after the other, as a reader would."""
    taken = []
    for index, token in enumerate(sampled):
        taken.append(token)
        if index == len(drafts) or token != drafts[index]:
            break
    return taken


@given(ROWS)
def test_a_draft_counts_while_it_is_what_was_sampled_before_it(rows: list[tuple[list[int], list[int]]]) -> None:
    sampled = np.array([token for own, _ in rows for token in own], np.int32)
    drafts = np.array([token for _, own in rows for token in own], np.int32)
    num_drafts = np.array([len(own) for _, own in rows], np.int32)
    tokens, counts = accept_drafts(sampled, num_drafts, drafts)
    expected = [accepted(*row) for row in rows]
    assert counts.tolist() == [len(own) for own in expected]
    assert tokens.tolist() == [token for own in expected for token in own]


@given(st.lists(st.integers(0, 4).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), max_size=8))
def test_totals_add_up(rows: list[tuple[int, int]]) -> None:
    asked, right = (np.array([row[index] for row in rows], np.int32) for index in (0, 1))
    half = len(rows) // 2
    whole = DraftCounts.of_step(asked, right)
    parts = DraftCounts.of_step(asked[:half], right[:half]), DraftCounts.of_step(asked[half:], right[half:])
    total = parts[0].plus(parts[1])
    assert (total.num_drafts, total.num_draft_tokens) == (len(rows), asked.sum())
    assert total == whole
    assert sum(total.accepted_by_place) == total.num_accepted_tokens == right.sum()
    assert total.since(parts[0]).num_accepted_tokens == parts[1].num_accepted_tokens
