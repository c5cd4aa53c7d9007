"""The model card of the head: figures of the exported file, and how to get them again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scripts.demo_head.export import WEIGHTS
from scripts.demo_head.network import HeadShape
from scripts.demo_model.network import Params

_CARD = """\
---
license: apache-2.0
language: [en]
---

# demo-eagle3

An EAGLE-3 head for `demo`, the model that ships with jaxllm, to see speculative decoding work
without a download. It guesses the next tokens of `demo`; outputs are the same with and without it.

```sh
jaxllm serve demo --spec-method eagle3 --spec-model demo-eagle3 --num-speculative-tokens 4
```

| | |
|---|---|
| architecture | `LlamaForCausalLMEagle3`, one layer, hidden size {hidden}, feed-forward {feed_forward} |
| attention | {heads} query heads and {kv_heads} key/value heads of {head_dim} |
| reads | what layers {taps} of `demo` read |
| parameters | {parameters:,} in bfloat16, {megabytes:.1f} MB |
| vocabulary | the {vocab} tokens of `demo` |

## Figures

How often a guess is the token that `demo` finds most likely, where the guesses before it are right:
over the words that `demo` has to write in {documents} held-out documents, which are in no training text.

| guess | {numbers} |
|---|{line}
| right | {rates} |

With {count} guesses that are all checked, a step would give {length:.2f} tokens on average.

To measure this again:

```sh
python -m scripts.train_demo_head --evaluate
```

## Training

It learned the probabilities of `demo` on text generated from a seed, as `demo` itself did.
This head: seed {seed}, {steps} steps, {tokens} tokens, on a {device}.

```sh
python -m scripts.train_demo_head --seed {seed} --steps {steps}
```
"""


def write(
    folder: Path, rates: NDArray[np.float64], documents: int, params: Params, own: HeadShape, run: dict[str, str]
) -> None:
    """Writes the card of the head in the folder."""
    vocab, hidden = params["lm_head.weight"].shape[::-1]
    card = _CARD.format(
        **(vars(own) | run | {"taps": ", ".join(map(str, own.taps))}),
        vocab=vocab,
        hidden=hidden,
        parameters=sum(array.size for array in params.values()),
        megabytes=(folder / WEIGHTS).stat().st_size / 1e6,
        documents=documents,
        numbers=" | ".join(str(number + 1) for number in range(len(rates))),
        line="---|" * len(rates),
        rates=" | ".join(f"{rate:.1%}" for rate in rates),
        count=len(rates),
        length=1 + np.cumprod(rates).sum(),
    )
    (folder / "README.md").write_text(card, encoding="utf-8")
