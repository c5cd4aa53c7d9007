"""The model card: figures of the exported file and how to get them again."""

from __future__ import annotations

from pathlib import Path

from scripts.demo_model.evaluate import Figures
from scripts.demo_model.export import WEIGHTS
from scripts.demo_model.network import Params, Shape

_CARD = """\
---
license: apache-2.0
language: [en]
pipeline_tag: text-generation
---

# demo

A very small trained Llama, to see text, stopping, caching, grammars and calls work without a
download. It knows one thing: Brindle Vale, a small invented world. Ask it anything else, and it
answers about Brindle Vale.

| | |
|---|---|
| architecture | `LlamaForCausalLM`, {layers} layers, hidden size {hidden}, feed-forward {feed_forward}, tied |
| attention | {heads} query heads and {kv_heads} key/value heads of {head_dim} |
| parameters | {parameters:,} in bfloat16, {megabytes:.1f} MB; computed in float32 (`dtype` in `config.json`) |
| vocabulary | {vocab} tokens, custom byte-level BPE; digits are single tokens |
| context | {positions} positions; trained on documents of up to 1024 tokens |
| end tokens | `<|im_end|>` for chats, `<|endoftext|>` for raw text |

## What it can do

- arithmetic: sums and differences of numbers up to 30, products up to 10 x 10 (`What is 17 + 25?`)
- facts of its world (`Where does Mira live?`)
- JSON objects of five schemas (`Give me a JSON object for Mira with name, animal and likes.`)
- calls of seven functions, alone or in pairs, and answers from their results
  (`scripts/demo_model/calls.py`)
- numbered lists, counting, repeating, emoji, words in seven languages, short stories in a chat or
  as raw text
- system prompts: `Answer with as few words as you can.`, `End every answer with a star.`,
  `You are a pirate.`, `Your name is Ada.`

## Figures

Greedy decoding of {prompts} held-out prompts, from the exported file. A hash keeps their
combinations (operands, fact and wording, JSON object, call with its arguments) out of the training
text, for any seed. Only copying exercises, which are raw text, may hold the words of a short list.

| kind | prompts | right | stopped at an end token |
|---|---|---|---|
{rows}
| **all** | {prompts} | **{right:.1%}** | **{stopped:.1%}** |

The four large kinds together (arithmetic, calls, facts, JSON): **{large:.1%}**. Reading
notes in the prompt is in the training text, but the model is too small for it.

Held-out loss: **{loss:.4f}** nats per token, over {loss_tokens:,} tokens of answers to other
held-out prompts.

To measure this again:

```sh
python -m scripts.train_demo_model --evaluate --out models/demo
```

## Training

Text and weights come from `scripts/train_demo_model.py` alone. It generates new text at every step
from a seed: first exercises in copying words, then a mixture of everything.
This model: seed {seed}, {steps} steps, {tokens:,} tokens, on a {device}.{continued}

```sh
python -m scripts.train_demo_model --seed {seed} --steps {steps} --out models/demo
```
"""

_CONTINUED = """ The run was continued at step {step}: the command
below gives the same model only if the corpus was the same before."""


def write(folder: Path, figures: Figures, params: Params, shape: Shape, run: dict[str, str]) -> None:
    """Writes the card of the model in the folder."""
    rows = "\n".join(
        f"| {kind} | {count} | {right / count:.1%} | {stopped / count:.1%} |"
        for kind, (count, right, stopped) in sorted(figures.by_kind().items())
    )
    large = [answer for answer in figures.answers if answer.item.kind in ("arithmetic", "calls", "facts", "json")]
    step = run.get("continued")
    continued = _CONTINUED.format(step=step) if step else ""
    card = _CARD.format(
        **vars(shape) | run | {"tokens": int(run["tokens"]), "continued": continued},
        positions=shape.max_positions,
        parameters=sum(array.size for array in params.values()),
        megabytes=(folder / WEIGHTS).stat().st_size / 1e6,
        prompts=len(figures.answers),
        rows=rows,
        right=figures.right,
        large=sum(one.right for one in large) / len(large),
        stopped=figures.stopped,
        loss=figures.loss,
        loss_tokens=figures.loss_tokens,
    )
    (folder / "README.md").write_text(card, encoding="utf-8")
