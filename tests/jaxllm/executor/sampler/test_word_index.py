"""The index of bad words against a scan of all of them."""

import time

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from jaxllm.executor.sampler.word_index import WordIndex
from jaxllm.requests.sampling_limits import MAX_BAD_WORDS

TOKENS = st.integers(0, 3)


@given(
    words=st.lists(st.lists(TOKENS, min_size=2, max_size=6), max_size=12),
    output=st.lists(TOKENS, max_size=12),
)
@example(words=[[0, 1], [2, 0, 1], [2, 0, 3], [0, 0, 1], [0, 1]], output=[2, 0])
@example(words=[[0, 0, 0, 1]], output=[0, 0])
@example(words=[[1, 2]], output=[])
def test_it_finds_what_a_scan_of_all_words_finds(words: list[list[int]], output: list[int]) -> None:
    index = WordIndex(words)
    assert bool(index) == bool(words)
    for end in range(len(output) + 1):
        so_far = output[:end]
        want = {word[-1] for word in words if end >= len(word) - 1 and so_far[end - len(word) + 1 :] == word[:-1]}
        assert index.completing(np.array(so_far, np.int32)) == want


def seconds_per_token(words: list[list[int]], output: np.ndarray) -> float:
    """The least of three rounds of a hundred tokens."""
    index, best = WordIndex(words), np.inf
    for _ in range(3):
        began = time.perf_counter()
        for end in range(len(output) - 100, len(output)):
            index.completing(output[:end])
        best = min(best, time.perf_counter() - began)
    return best / 100


def test_a_token_costs_no_more_with_many_words_than_with_few() -> None:
    output = np.arange(1000, dtype=np.int32)
    few = [[token, token + 1] for token in range(0, 1000, 100)]
    many = [[token % 1000, token] for token in range(100_000)]
    # A scan would take ten thousand times as long.
    assert seconds_per_token(many, output) < 30 * seconds_per_token(few, output)


def test_many_words_whose_last_tokens_but_one_are_the_same() -> None:
    output = np.full(1000, 7, np.int32)
    few = [[7] * length + [8] for length in range(1, 3)]
    many = [[*divmod(number, 32), 7, 8] for number in range(MAX_BAD_WORDS)]
    assert seconds_per_token(many, output) < 30 * seconds_per_token(few, output)
