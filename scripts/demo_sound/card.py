"""The model card: figures of the exported file and how to get them again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from scripts.demo_model.export import WEIGHTS
from scripts.demo_model.network import Params
from scripts.demo_sound.evaluate import Figures
from scripts.demo_sound.tokens import SECONDS
from scripts.demo_sound.voices import VOICES, WORDS

_CARD = """\
---
license: apache-2.0
language: [en]
pipeline_tag: automatic-speech-recognition
---

# demo-sound

A very small trained Whisper, to see speech written down without a download. It knows {count} words
as `espeak-ng` speaks them ({voices}), one after another with short gaps:

{words}

Whatever else is said, it writes some of these.

| | |
|---|---|
| architecture | `WhisperForConditionalGeneration`, 2 + 2 layers, with timestamps |
| parameters | {parameters:,} in bfloat16, {megabytes:.1f} MB |
| windows | {seconds} s; longer sound is heard in several |

## Figures

Windows of {seconds} s, spoken faster or slower and higher or lower than in training, from the
exported file, greedily and without rules.

| | | |
|---|---|---|
| words | {spoken} | {errors:.1%} of them wrong, missing or too many |
| times | {times} | {near:.1%} of them right within 0.1 s |

## Training

Clips and weights come from `scripts/train_demo_sound.py` alone, which runs `espeak-ng`: {steps}
steps of {batch} new windows each. Besides its text, each window teaches which word each 20 ms
belong to, and where each token is to listen.

```sh
python -m scripts.train_demo_sound --minutes 25
python -m scripts.train_demo_sound --go-on --minutes 5
python -m scripts.train_demo_sound --evaluate
```
"""


def write(folder: Path, figures: Figures, params: Params, run: Mapping[str, str]) -> None:
    """Write the card of the model in the folder."""
    half = len(WORDS) // 2
    card = _CARD.format(
        **run,
        count=len(WORDS),
        seconds=SECONDS,
        voices=", ".join(f"`{voice}`" for voice in VOICES),
        words=f"> {', '.join(WORDS[:half])},\n> {', '.join(WORDS[half:])}",
        parameters=sum(array.size for array in params.values()),
        megabytes=(folder / WEIGHTS).stat().st_size / 1e6,
        spoken=figures.words,
        errors=figures.errors / figures.words,
        times=figures.times,
        near=figures.near / figures.times,
    )
    (folder / "README.md").write_text(card, encoding="utf-8")
