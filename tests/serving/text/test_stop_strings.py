"""Stop strings against a search letter by letter, and what they cost."""

import random
import time
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxllm.requests.sampling_limits import MAX_STOP_CHARACTERS, MAX_STOPS
from jaxllm.serving.text.stop_strings import StopAutomaton, StopStrings


def oracle(text: str, stops: Sequence[str], include: bool) -> tuple[str, str | None]:
    """The part of `text` that is shown, found letter by letter."""
    for end in range(1, len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            stop = max(ending, key=len)
            return text[: end if include else end - len(stop)], stop
    return text, None


@settings(max_examples=500)
@given(
    text=st.text("ab\n", max_size=20),
    stops=st.lists(st.text("ab\n", min_size=1, max_size=4), min_size=1, max_size=3, unique=True),
    cuts=st.lists(st.integers(0, 20), max_size=6),
    include=st.booleans(),
)
def test_stop_strings_against_the_letter_by_letter_search(
    text: str, stops: list[str], cuts: list[int], include: bool
) -> None:
    want, matched = oracle(text, stops, include)
    finder = StopStrings(StopAutomaton(stops), include=include)
    shown = ""
    edges = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    for first, last in pairwise(edges):
        if finder.matched is None:
            shown += finder.push(text[first:last])
            assert want.startswith(shown), "text was shown that belongs to a stop string"
    if finder.matched is None:
        shown += finder.flush()
    assert (shown, finder.matched) == (want, matched)


@pytest.mark.parametrize("stops", [["b", "ab", "aab"], ["aab", "ab", "b"], ["ab", "aab", "b"]])
@pytest.mark.parametrize("pieces", [["xaab"], ["x", "a", "a", "b"], ["xa", "ab"]])
def test_of_stop_strings_complete_at_once_the_longest_counts(stops: list[str], pieces: list[str]) -> None:
    finder = StopStrings(StopAutomaton(stops))
    assert "".join(finder.push(piece) for piece in pieces) == "x"
    assert finder.matched == "aab"


@pytest.mark.parametrize("stops", [["aab", "ac"], ["ac", "aab"], ["c", "aab", "ba"]])
def test_what_could_begin_the_longest_stop_string_is_held(stops: list[str]) -> None:
    finder = StopStrings(StopAutomaton(stops))
    assert (finder.push("xaa"), finder.flush()) == ("x", "aa")
    assert (finder.push("xaa"), finder.push("b"), finder.matched) == ("x", "", "aab")


def test_text_is_held_only_while_it_may_become_a_stop_string() -> None:
    finder = StopStrings(StopAutomaton(["</end>"]))
    assert [finder.push(piece) for piece in ["a <", "b </", "en", "x", "</e", "nd>"]] == [
        "a ",
        "<b ",
        "",
        "</enx",
        "",
        "",
    ]
    assert finder.matched == "</end>"


def test_unchecked_text_still_begins_a_stop_string() -> None:
    finder = StopStrings(StopAutomaton(["aab"]))
    assert finder.push("aab", check=False) == "aab"
    assert finder.push("ca", check=False) == "c"
    assert finder.push("ab") == ""
    assert finder.matched == "aab"


def seconds_per_piece(stops: Sequence[str], pieces: Sequence[str]) -> float:
    """The least of three rounds."""
    automaton, best = StopAutomaton(stops), float("inf")
    for _ in range(3):
        finder, began = StopStrings(automaton), time.perf_counter()
        for piece in pieces:
            finder.push(piece)
        best = min(best, time.perf_counter() - began)
        assert finder.matched is None
    return best / len(pieces)


def test_a_piece_costs_no_more_with_as_many_stop_strings_as_are_allowed() -> None:
    """They were all looked for in every piece: 15 ms for each, in the loop that serves everybody."""
    rng = random.Random(0)
    pieces = ["".join(rng.choices("abcde ", k=4)) for _ in range(300)]
    size = MAX_STOP_CHARACTERS // MAX_STOPS
    many = ["a" + "".join(rng.choices("abcde ", k=size - 2)) + chr(1000 + number) for number in range(MAX_STOPS)]
    long = ["a" * (MAX_STOP_CHARACTERS - 1) + "b"]
    few = seconds_per_piece(["User:", "\n\n"], pieces)
    assert seconds_per_piece(many, pieces) < 50 * few
    assert seconds_per_piece(long, ["aaaa"] * 1000 + ["cccc"]) < 50 * few
