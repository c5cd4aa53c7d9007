"""Words as espeak-ng speaks them, in several voices."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from typing import Final

import numpy as np

from jaxllm.serving.media.audio.files import decode
from jaxllm.serving.media.audio.resample import Samples

PROGRAM: Final = "espeak-ng"
WORDS: Final = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
VOICES: Final = ("en-us",)
_SPEEDS: Final = (130, 145, 160, 175, 190)
"""Words per minute."""
_PITCHES: Final = (35, 45, 55, 65)
_HELD_OUT_SPEEDS: Final = (138, 152, 168, 182)
_HELD_OUT_PITCHES: Final = (40, 50, 60)
_QUIET: Final = 0.01
"""Of the loudest sample: what is below it before and after a word is no part of it."""

Recordings = Mapping[str, Sequence[Sequence[Samples]]]
"""Of each word in each voice, those at several speeds and pitches."""


def is_installed() -> bool:
    """Whether there is a program that speaks."""
    return shutil.which(PROGRAM) is not None


def say(text: str, voice: str, speed: int, pitch: int) -> Samples:
    """What the program says, float32 [samples] of 16 kHz, without the silence around it. Raises `SystemExit`."""
    if not is_installed():
        raise SystemExit(f"{PROGRAM} is missing, which speaks the words: install it, with apt-get install {PROGRAM}")
    command = [PROGRAM, "-v", voice, "-s", str(speed), "-p", str(pitch), "--stdout", text]
    made = subprocess.run(command, check=True, capture_output=True, timeout=60).stdout
    sound = decode(made, 60)
    loud = np.flatnonzero(np.abs(sound) > _QUIET * np.abs(sound).max())
    return 0.5 * sound[loud[0] : loud[-1] + 1] / np.abs(sound).max()


def recordings(*, held_out: bool) -> Recordings:
    """All words in all voices; those that are held out have speeds and pitches that no training run hears."""
    speeds, pitches = (_HELD_OUT_SPEEDS, _HELD_OUT_PITCHES) if held_out else (_SPEEDS, _PITCHES)
    with ThreadPoolExecutor(2) as threads:
        started = {
            (word, voice): [threads.submit(say, word, voice, *each) for each in product(speeds, pitches)]
            for word, voice in product(WORDS, VOICES)
        }
        return {word: [[each.result() for each in started[word, voice]] for voice in VOICES] for word in WORDS}
