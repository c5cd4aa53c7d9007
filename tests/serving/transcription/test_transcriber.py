"""Long sound becomes text without losing a word, by a model that hears numbers."""

import asyncio
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxllm.errors import QueueFullError, RequestError
from jaxllm.serving.media.audio.resample import RATE, Samples
from jaxllm.serving.transcription.transcriber import Progress, Spoken, Transcriber, Wanted, joined
from tests.serving.transcription.spoken_numbers import (
    BEFORE,
    END,
    ENGLISH,
    GAP,
    GERMAN,
    NO_TIMES,
    PAUSE,
    START,
    TRANSCRIBE,
    TRANSLATE,
    WORD,
    Listener,
    Numbers,
    model,
    speech,
)

SECONDS = 6
"""Of a window."""


def transcriber(listener: Any, *, with_times: bool = True) -> Transcriber:
    async def run(function: Callable[..., Any], *arguments: Any) -> Any:
        return function(*arguments)

    return Transcriber(model(SECONDS, with_times=with_times), Numbers(), listener, run)  # type: ignore[arg-type]


async def heard(
    listener: Any, sound: Samples, wanted: Wanted, *, with_times: bool = True
) -> tuple[Progress, list[Spoken]]:
    progress, segments = transcriber(listener, with_times=with_times).transcribe(sound, wanted)
    return progress, [each async for each in segments]


def words_of(segments: list[Spoken]) -> list[int]:
    return [int(word) for word in joined(segments).split()]


speeches = st.lists(st.tuples(st.integers(0, 98), st.integers(0, 59)), min_size=1, max_size=120)
"""Words, each with a number; a pause follows the word if the number is small."""


@settings(max_examples=60, deadline=None)
@given(speeches, st.sampled_from([0, 1, 3, 10, 30]), st.integers(1, 5), st.booleans())
def test_no_word_is_lost_and_none_comes_twice(
    words: list[tuple[int, int]], pauses: int, at_once: int, measures: bool
) -> None:
    """Whether pauses are frequent, or so rare that a stretch between two is of many windows."""
    spoken, has_pause = [word for word, _ in words], [chance < pauses for _, chance in words]
    sound = speech(spoken, has_pause)
    listener = Listener(SECONDS, at_once=at_once)
    progress, segments = asyncio.run(heard(listener, sound, Wanted(language="en", measures=measures)))
    assert words_of(segments) == spoken
    ends = np.cumsum([GAP, *[WORD + (PAUSE if pause else GAP) for pause in has_pause]])
    begin = 0
    for each in segments:
        count = len(each.text.split())
        assert each.start == pytest.approx(ends[begin] / RATE, abs=0.02)
        assert each.end == pytest.approx((ends[begin + count - 1] + WORD) / RATE, abs=0.02)
        begin += count
    assert progress.duration == len(sound) / RATE
    assert listener.running == 0


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 98), min_size=1, max_size=60))
def test_without_timestamps_pauses_are_all_that_saves_words(words: list[int]) -> None:
    pauses = [place % 5 == 4 for place in range(len(words))]
    listener = Listener(SECONDS, with_times=False)
    _, segments = asyncio.run(heard(listener, speech(words, pauses), Wanted(language="en"), with_times=False))
    assert words_of(segments) == words
    assert all(NO_TIMES not in prompt for prompt, _ in listener.asked)


async def test_without_timestamps_and_pauses_it_is_cut_in_gaps() -> None:
    words = list(range(60))
    listener = Listener(SECONDS, with_times=False)
    _, segments = await heard(listener, speech(words, [False] * 60), Wanted(language="en"), with_times=False)
    assert words_of(segments) == words


async def test_words_at_the_end_of_a_window_are_heard_again() -> None:
    listener, words = Listener(SECONDS), list(range(90))
    _, segments = await heard(listener, speech(words, [False] * 90), Wanted(language="en"))
    assert words_of(segments) == words
    # There are more windows than the sound is long.
    assert len(listener.asked) > 90 * 0.4 / SECONDS + 1
    starts = [each.window_start for each in segments]
    assert starts == sorted(starts)
    assert len(set(starts)) == len(listener.asked)


async def test_stretches_are_heard_at_the_same_time() -> None:
    class Slow(Listener):
        async def __call__(self, *arguments: Any) -> Any:
            async for each in super().__call__(*arguments):
                await asyncio.sleep(0.001)
                yield each

    listener, words = Slow(SECONDS), list(range(90))
    sound = speech(words, [place % 5 == 4 for place in words])
    _, segments = await heard(listener, sound, Wanted(language="en"))
    assert words_of(segments) == words
    assert listener.most_running > 3
    progress, more = transcriber(listener).transcribe(sound, Wanted(language="en"), at_a_time=1)
    listener.most_running = 0
    assert words_of([each async for each in more]) == words
    assert listener.most_running == 1
    assert progress.num_windows > 3


async def test_segments_come_as_soon_as_they_are_closed() -> None:
    written = []

    class Slow(Listener):
        async def __call__(self, *arguments: Any) -> Any:
            async for each in super().__call__(*arguments):
                written.extend(each.token_ids)
                yield each
                await asyncio.sleep(0)

    _, segments = transcriber(Slow(SECONDS)).transcribe(speech(list(range(12)), [False] * 12), Wanted(language="en"))
    seen = [(each.text, END in written) async for each in segments]
    assert seen[0] == (" 0 1 2", False)


async def test_the_language_is_found_out_once() -> None:
    words = list(range(40))
    listener = Listener(SECONDS)
    progress, segments = await heard(listener, speech(words, [True] * 40), Wanted())
    assert progress.language == "de"
    assert words_of(segments) == words
    opening, *windows = listener.asked
    assert opening[0] == [START]
    assert opening[1].allowed_token_ids == [ENGLISH, GERMAN]
    assert opening[1].max_tokens == 1
    assert len(windows) > 1
    assert all(prompt == [START, GERMAN, TRANSCRIBE] for prompt, _ in windows)
    assert all(params.extra_args and params.max_tokens == 397 for _, params in windows)


async def test_what_is_asked_for_is_in_the_prompt() -> None:
    listener = Listener(SECONDS)
    wanted = Wanted(language="en", task="translate", before="7 8 <|endoftext|> 9")
    _, segments = await heard(listener, speech([1], [False]), wanted)
    assert [prompt for prompt, _ in listener.asked] == [[BEFORE, 7, 8, 9, START, ENGLISH, TRANSLATE]]
    assert words_of(segments) == [1]
    long = " ".join(str(place % 90) for place in range(500))
    await heard(listener, speech([1], [False]), Wanted(language="en", before=long))
    assert len(listener.asked[-1][0]) == 1 + 199 + 1 + 2
    assert listener.asked[-1][1].max_tokens == 400 - 203


async def test_measures() -> None:
    listener = Listener(SECONDS)
    _, (segment,) = await heard(listener, speech([1, 2], [False] * 2), Wanted(language="en", measures=True))
    assert segment.no_speech_prob == pytest.approx(np.exp(-2.0))
    assert segment.mean_logprob == -0.25
    assert segment.window_start == 0.0
    assert segment.compression_ratio > 0
    plain = Listener(SECONDS)
    await heard(plain, speech([1, 2], [False] * 2), Wanted(language="en"))
    assert len(plain.asked) == 1


async def test_silence_has_no_segments() -> None:
    progress, segments = await heard(Listener(SECONDS), np.zeros(20 * RATE, np.float32), Wanted(language="en"))
    assert segments == []
    assert progress.num_windows >= 4


async def test_an_error_ends_everything() -> None:
    class Failing(Listener):
        async def __call__(self, *arguments: Any) -> Any:
            async for each in super().__call__(*arguments):
                if len(self.asked) > 3:
                    raise QueueFullError("too many")
                yield each
                await asyncio.sleep(0.001)

    listener = Failing(SECONDS)
    with pytest.raises(QueueFullError):
        await heard(listener, speech(list(range(60)), [True] * 60), Wanted(language="en"))
    assert listener.running == 0


async def test_who_leaves_ends_everything() -> None:
    listener = Listener(SECONDS)
    _, segments = transcriber(listener).transcribe(speech(list(range(60)), [True] * 60), Wanted(language="en"))
    async for _ in segments:
        break
    await segments.aclose()
    assert listener.running == 0


async def test_a_model_that_never_ends_its_segments_comes_to_an_end() -> None:
    """Each window has an end after 20 ms of it, and goes on."""

    class Stubborn(Listener):
        def _tokens(self, sound: Samples) -> list[int]:
            return [self._time(0), 1, self._time(RATE // 50), self._time(RATE // 50), 2]

    listener = Stubborn(SECONDS)
    _, segments = await heard(listener, speech(list(range(60)), [False] * 60), Wanted(language="en"))
    assert len(listener.asked) <= 6
    assert words_of(segments) == [1, 2] * len(listener.asked)


def test_a_prompt_that_is_no_text_is_an_error() -> None:
    with pytest.raises(RequestError, match="surrogate"):
        transcriber(Listener(SECONDS)).text_tokens("\ud800")
