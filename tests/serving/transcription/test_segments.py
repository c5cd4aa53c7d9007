"""Segments in the texts of windows, and where pauses are."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxllm.serving.media.audio.resample import RATE
from jaxllm.serving.transcription.segments import closed_segments, read_window
from jaxllm.serving.transcription.windows import stretches
from tests.serving.transcription.spoken_numbers import END, FIRST, model

MODEL = model(30)


def at(seconds: float) -> int:
    return FIRST + round(seconds * 50)


def read(
    tokens: Sequence[int], *, seconds: float = 30.0, is_last: bool = False
) -> tuple[list[tuple[float, float]], float]:
    found = read_window(MODEL, tokens, None, start=100.0, seconds=seconds, is_last=is_last)
    return [(each.start, each.end) for each in found.segments], found.covered


def test_a_text_that_breaks_off_covers_what_is_closed() -> None:
    tokens = [at(0), 1, at(2), at(2.5), 2, at(20), at(20.5), 3]
    assert read(tokens) == ([(100.0, 102.0), (102.5, 120.0)], 20.0)
    # The last of a stretch as well, if there is more of it than a moment.
    assert read(tokens, seconds=22.0, is_last=True)[1] == 20.0
    assert read(tokens, seconds=20.9, is_last=True) == ([(100.0, 102.0), (102.5, 120.0), (120.5, 120.9)], 20.9)


def test_a_text_that_ends_with_a_segment_covers_all() -> None:
    assert read([at(0), 1, at(2), at(2.5), 2, at(20), END]) == ([(100.0, 102.0), (102.5, 120.0)], 30.0)


def test_one_segment_covers_all_with_and_without_an_end() -> None:
    assert read([at(1), 1, at(2), END]) == ([(101.0, 102.0)], 30.0)
    assert read([at(1), 1]) == ([(101.0, 130.0)], 30.0)
    assert read([END]) == ([], 30.0)
    assert read([at(0), END]) == ([(100.0, 130.0)], 30.0)


def test_times_beyond_the_window_are_its_end() -> None:
    assert read([at(1), 1, at(29)], seconds=10.0) == ([(101.0, 110.0)], 10.0)


def test_means_of_logprobs_are_those_of_the_segments() -> None:
    found = read_window(
        MODEL, [at(0), 1, at(2), at(2), 2, at(3), END], [-1, -2, -3, 0, 0, -3, -9], start=0.0, seconds=9.0, is_last=True
    )
    assert [each.mean_logprob for each in found.segments] == [-2.0, -1.0]


def test_segments_are_done_when_the_next_begins() -> None:
    tokens = [at(0), 1, at(2), at(2), 2, at(3)]
    assert [closed_segments(MODEL, tokens[:count]) for count in range(7)] == [0, 0, 0, 0, 3, 3, 3]


@given(st.lists(st.tuples(st.floats(0.05, 12.0), st.floats(0.02, 2.0)), max_size=20), st.integers(2, 10))
def test_stretches_are_all_of_the_sound(parts: list[tuple[float, float]], seconds: int) -> None:
    random = np.random.default_rng(1)
    loud = [random.normal(scale=0.1, size=int(RATE * each)) for each, _ in parts]
    quiet = [random.normal(scale=1e-4, size=int(RATE * each)) for _, each in parts]
    sound = np.concatenate([np.zeros(0), *(each for pair in zip(loud, quiet, strict=True) for each in pair)])
    found = stretches(sound.astype(np.float32), seconds * RATE)
    assert found[0].start == 0
    assert found[-1].stop == len(sound)
    assert all(a.stop == b.start for a, b in pairwise(found))
    for each in found[:-1]:
        # It ends in a pause, which is not loud.
        assert np.abs(sound[each.stop - RATE // 10 : each.stop + RATE // 10]).max() < 0.01
        if each.stop - each.start > seconds * RATE:
            between = sound[each.start + seconds * RATE // 8 + RATE // 2 : each.start + seconds * RATE - RATE // 2]
            frames = np.abs(between[: len(between) // 320 * 320]).reshape(-1, 320).max(axis=1) > 0.01
            assert not any((~frames[place : place + 40]).all() for place in range(len(frames) - 40))


@pytest.mark.parametrize("size", [0, 1, 319, 320, 5 * RATE])
def test_short_sounds_are_one_stretch(size: int) -> None:
    assert stretches(np.zeros(size, np.float32), 10 * RATE) == [(0, size)]
