"""Counting the tokens of reasoning."""

import itertools

import pytest

from jaxllm.serving.reply.reasoning_count import ReasoningCount

BEGIN, END = (1,), (2, 3)


@pytest.mark.parametrize(
    ("inside", "tokens", "count"),
    [
        (True, [7, 7, 2, 3, 7], 2),
        (True, [7, 2, 7], 3),
        (False, [7, 7], 0),
        (False, [1, 7, 7, 7, 2, 3, 8], 3),
        (False, [1, 7, 2, 3, 8, 1, 7], 2),
        (True, [2, 3, 8, 8], 0),
        (True, [], 0),
    ],
)
def test_only_what_is_between_the_marks_counts(inside: bool, tokens: list[int], count: int) -> None:
    for cut in range(len(tokens) + 1):
        counter = ReasoningCount([BEGIN], [END], inside=inside)
        counter.push(tokens[:cut])
        counter.push(tokens[cut:])
        assert counter.count == count
    counts = []
    counter = ReasoningCount([BEGIN], [END], inside=inside)
    for token in tokens:
        counter.push([token])
        counts.append(counter.count)
    assert all(later >= earlier - len(END) for earlier, later in itertools.pairwise(counts))
