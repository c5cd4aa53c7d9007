"""Sound in which anybody can hear numbers, and a model that does: words are constant samples, with gaps around."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import numpy as np

from jaxllm.requests.sampling_params import SamplingParams
from jaxllm.serving.media.audio.mel import MelFeatures
from jaxllm.serving.media.audio.resample import RATE, Samples
from jaxllm.serving.transcription.model import TranscriptionModel
from jaxllm.serving.transcription.transcriber import Heard

END, START, BEFORE, ENGLISH, GERMAN, TRANSCRIBE, TRANSLATE, NO_SPEECH, NO_TIMES = range(100, 109)
FIRST = NO_TIMES + 1
SPECIAL = {
    "<|endoftext|>": END,
    "<|startoftranscript|>": START,
    "<|startofprev|>": BEFORE,
    "<|en|>": ENGLISH,
    "<|de|>": GERMAN,
    "<|transcribe|>": TRANSCRIBE,
    "<|translate|>": TRANSLATE,
    "<|nospeech|>": NO_SPEECH,
    "<|notimestamps|>": NO_TIMES,
}
CUT = 99
"""What is heard of a word whose beginning is missing."""
WORD, GAP, PAUSE = RATE * 3 // 10, RATE // 10, RATE // 2
"""Samples. A gap is no pause."""


class PlainFeatures(MelFeatures):
    """The sound itself, as it is."""

    def __call__(self, samples: Samples) -> Samples:
        assert len(samples) <= self.num_samples
        return samples


class Numbers:
    """A tokenizer of numbers below 99."""

    special_ids = frozenset(SPECIAL.values())

    def encode(self, texts: Sequence[str], *, add_special_tokens: bool) -> list[list[int]]:
        assert not add_special_tokens
        return [[SPECIAL.get(each) or int(each) for each in text.split()] for text in texts]

    def decode(self, token_ids: Sequence[int]) -> str:
        return "".join(f" {token}" for token in token_ids)


def speech(words: Sequence[int], pauses: Sequence[bool]) -> Samples:
    """Words, each with a pause or a gap after it."""
    parts = [np.zeros(GAP)]
    for word, pause in zip(words, pauses, strict=True):
        parts += [np.full(WORD, (word + 100) / 400), np.zeros(PAUSE if pause else GAP)]
    return np.concatenate(parts).astype(np.float32)


def model(seconds: int, *, with_times: bool = True) -> TranscriptionModel:
    """What the files of such a model would say."""
    return TranscriptionModel(
        features=PlainFeatures(seconds=seconds),
        start=START,
        end=END,
        before=BEFORE,
        no_times=NO_TIMES if with_times else None,
        no_speech=NO_SPEECH,
        tasks={"transcribe": TRANSCRIBE, "translate": TRANSLATE},
        languages={"en": ENGLISH, "de": GERMAN},
        suppressed=(),
        suppressed_first=(),
        most_initial=None,
        max_length=400,
    )


class Listener:
    """Hears three words in a segment; one whose last word is cut off has no end."""

    def __init__(self, seconds: int, *, with_times: bool = True, at_once: int = 2) -> None:
        self.asked: list[tuple[list[int], SamplingParams]] = []
        self.running, self.most_running = 0, 0
        self._size, self._with_times, self._at_once = seconds * RATE, with_times, at_once

    async def __call__(
        self, prompt: list[int], features: Samples, params: SamplingParams
    ) -> AsyncGenerator[Heard, None]:
        self.asked.append((prompt, params))
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        try:
            if prompt[-1] == START:
                yield Heard([GERMAN], [{GERMAN: -0.5, NO_SPEECH: -2.0}])
                return
            tokens = self._tokens(features)
            for place in range(0, len(tokens), self._at_once):
                some = tokens[place : place + self._at_once]
                yield Heard(some, [{token: -0.25} for token in some])
        finally:
            self.running -= 1

    def _tokens(self, sound: Samples) -> list[int]:
        edges = np.flatnonzero(np.diff(sound, prepend=0, append=0))
        runs = edges.reshape(-1, 2)
        found: list[Any] = []
        for begin, end in runs:
            known = round(float(sound[begin]) * 400 - 100)
            if end == len(sound) == self._size:
                found.append(None)
            else:
                found.append((known if end - begin == WORD else CUT, begin, end))
        if not self._with_times:
            return [CUT if each is None else each[0] for each in found] + [END]
        tokens = []
        for place in range(0, len(found), 3):
            group = [each for each in found[place : place + 3] if each is not None]
            if group:
                tokens += [self._time(group[0][1]), *(each[0] for each in group)]
                if len(group) == len(found[place : place + 3]):
                    tokens.append(self._time(group[-1][2]))
        return [*tokens, END]

    def _time(self, sample: int) -> int:
        return FIRST + round(int(sample) / RATE / 0.02)
