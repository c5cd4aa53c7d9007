"""Clips: phrases of a few words each, with gaps between words and pauses between phrases."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final

import numpy as np

from jaxllm.serving.media.audio.resample import RATE, Samples
from scripts.demo_sound.voices import VOICES, WORDS, Recordings

MOST_WORDS: Final = 3
"""Of a phrase."""
CALM: Final = (0.35, 0.9)
HURRIED: Final = (0.22, 0.28)
"""Seconds between phrases. In the shorter ones a server that cuts in pauses finds none."""
_GAPS: Final = (0.04, 0.12)
"""Seconds between words."""
_LEAD: Final = 0.6
"""Most seconds before the first word."""


@dataclass(frozen=True)
class Word:
    """A word, and the samples between which it is spoken."""

    text: str
    start: int
    end: int


@dataclass(frozen=True)
class Clip:
    """Sound, float32 [samples] of 16 kHz, and the words of each phrase in it."""

    samples: Samples
    phrases: tuple[tuple[Word, ...], ...]

    @property
    def text(self) -> str:
        """All words."""
        return " ".join(word.text for phrase in self.phrases for word in phrase)


def clip(recordings: Recordings, random: Random, seconds: float, pauses: tuple[float, float], most: float) -> Clip:
    """A clip of so many seconds in one voice; it speaks up to `most` seconds, and no phrase is cut off."""
    voice = random.randrange(len(VOICES))
    sound = np.zeros(round(seconds * RATE), np.float32)
    phrases: list[tuple[Word, ...]] = []
    place = round(random.uniform(0.0, _LEAD) * RATE)
    while True:
        words, spoken = list[Word](), list[Samples]()
        for _ in range(random.randint(1, MOST_WORDS)):
            text = random.choice(WORDS)
            spoken.append(random.choice(recordings[text][voice]))
            words.append(Word(text, place, place + len(spoken[-1])))
            place = words[-1].end + round(random.uniform(*_GAPS) * RATE)
        if words[-1].end > min(len(sound), most * RATE):
            break
        for word, samples in zip(words, spoken, strict=True):
            sound[word.start : word.end] = samples
        phrases.append(tuple(words))
        place = words[-1].end + round(random.uniform(*pauses) * RATE)
    loudness = random.uniform(0.3, 1.0)
    noise = random.choice((0.0, 10 ** random.uniform(-4.0, -2.7)))
    drawn = np.random.default_rng(random.getrandbits(32)).standard_normal(len(sound), np.float32)
    return Clip(np.float32(loudness) * sound + np.float32(noise) * drawn, tuple(phrases))
