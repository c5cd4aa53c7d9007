"""The model card: figures of the exported file and how to get them again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from scripts.demo_model.export import WEIGHTS
from scripts.demo_model.network import Params

_CARD = """\
---
license: apache-2.0
language: [en]
pipeline_tag: image-text-to-text
---

# demo-vision

A very small trained Idefics 3, to see pictures described without a download. It knows one thing:
one to four plain shapes (circle, square, triangle, star, cross) in eight colours, each in a quarter
of a white or grey picture. Of any other picture it says what shapes it takes it for.

| | |
|---|---|
| architecture | `Idefics3ForConditionalGeneration`: demo's Llama, and a SigLIP of 4 layers |
| parameters | {parameters:,} in bfloat16, {megabytes:.1f} MB |
| pictures | 96 x 96 pixels, 16 tokens each; others are resized |

## What it can do

`What is in this picture?`, `How many shapes are there?`, `What color is the star?`,
`Which shape is red?`, `Where is the circle?`, `Is there a blue square?`

## Figures

Greedy decoding of held-out questions about held-out pictures, from the exported file; an answer is
right if all of its tokens are.

| kind | questions | right |
|---|---|---|
{rows}
| **all** | {asked} | **{right:.1%}** |

## Training

Pictures, questions and weights come from `scripts/train_demo_vision.py` alone. The vision model
learns first to say, in the embeddings of the demo model's words, what is in each quarter of a
picture. Then the language model learns to answer from its rows: {steps} steps of {batch} new
pictures each, in stretches that each went on from the last.

```sh
python -m scripts.train_demo_vision --minutes 30
python -m scripts.train_demo_vision --go-on --pretraining-steps 300 --minutes 12
python -m scripts.train_demo_vision --evaluate
```
"""


def write(folder: Path, figures: Mapping[str, tuple[int, int]], params: Params, run: Mapping[str, str]) -> None:
    """Write the card of the model in the folder."""
    rows = "\n".join(f"| {kind} | {asked} | {right / asked:.1%} |" for kind, (asked, right) in figures.items())
    asked, right = (sum(each[number] for each in figures.values()) for number in (0, 1))
    card = _CARD.format(
        **run,
        parameters=sum(array.size for array in params.values()),
        megabytes=(folder / WEIGHTS).stat().st_size / 1e6,
        rows=rows,
        asked=asked,
        right=right / asked,
    )
    (folder / "README.md").write_text(card, encoding="utf-8")
